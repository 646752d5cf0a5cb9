"""The agent process: daemon, runs, approval, status."""
