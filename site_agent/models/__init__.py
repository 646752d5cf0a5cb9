"""Model files: written, read, listed, evaluated."""
