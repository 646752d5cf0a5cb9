"""The command `coreg-agent`."""
