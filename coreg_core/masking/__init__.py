"""Sums in integers modulo a power of two, so that cancelling masks change no bit: fixed point, layouts, masks,
totals.

The masks' bytes come from a function; `site_agent.identity` has the keys, peers and messages.
"""
