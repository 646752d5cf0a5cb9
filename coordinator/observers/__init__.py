"""Observers of a coordinator: terminal, plain lines, JSON lines, log, metrics.

Each receives typed notices.
"""
