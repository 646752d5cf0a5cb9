"""The papers' experiments, one a module, each with an `EXPERIMENT`; `runner` runs them, `pool` reads the data sets.

Nothing here knows the service: an experiment sees estimators, tables and seeds.
"""
