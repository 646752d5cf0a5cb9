"""Sums in integers modulo a power of two, so that masks which cancel change no bit: fixed point, layouts, masks,
totals.

The masks' bytes come from outside, as a function; keys, peers and messages are `site_agent.identity`'s business.
"""
