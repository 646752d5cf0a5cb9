"""The coordinator process: daemon, access control, certificates."""
