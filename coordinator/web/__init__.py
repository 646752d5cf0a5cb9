"""A page to watch a federation on, read from the run store and nothing else. Needs the extra `web`."""
