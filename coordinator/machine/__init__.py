"""The state machine of a run: recorded state, state of this process, and the handlers of events.

No socket, no clock.
"""
