"""Federations in one process: their data, and the simulation."""
