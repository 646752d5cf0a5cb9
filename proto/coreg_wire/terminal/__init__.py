"""Command lines, logs, metrics: what both programs share."""
