"""The plan, the messages between coordinator and site, and how a run can end."""
