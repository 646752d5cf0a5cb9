"""The page that shows a federation, from the run store alone. It needs the extra `web`."""
