"""The command `coreg-sim`."""
