"""The plan, the messages between coordinator and site, and the outcomes of a run."""
