"""The mathematics of co-regularised least squares regression: numpy and scipy, no socket, clock,
file or process.
"""
