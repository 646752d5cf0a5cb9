"""Computations on the columns of several sites by messages that hide the columns."""
