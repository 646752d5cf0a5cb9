"""The connection to the coordinator."""
