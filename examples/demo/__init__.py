"""`make demo`: real processes on real data."""
