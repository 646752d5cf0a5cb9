"""Kernel functions, the spans of a view, and leave-one-out rules for width and ridge."""
