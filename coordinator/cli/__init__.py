"""The command `coreg-coordinator`."""
