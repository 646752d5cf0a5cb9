"""Command lines and services of all programs."""
