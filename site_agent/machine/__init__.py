"""A site's part in a run as state machines over values: data, answers and limits.

No socket, no clock.
"""
