"""Federations in one process: problems, simulation, sweeps."""
