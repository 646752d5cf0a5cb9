"""Many sites on one machine, through the same state machines as the service.

Only this package imports both ends.
"""
