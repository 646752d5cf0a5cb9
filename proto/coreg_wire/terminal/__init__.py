"""Command lines, logs, metrics and plots of all programs."""
