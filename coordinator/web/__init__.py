"""Web pages that show a federation, from the run store alone. They need the extra `web`."""
