"""The coordinator: serves the federation, steps the schedule, remembers the run; never sees a label
or a feature.
"""
