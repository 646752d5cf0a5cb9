"""Federations in simulated time: the real daemons over simulated network, clock and crashes
(docs/research/reliability.md).
"""
