"""The papers' experiments, one in each module, as `EXPERIMENT`; `runner` runs them, and `pool`
reads the data sets.

An experiment uses estimators, tables and seeds, and no part of the service.
"""
