"""Read the operator's files into arrays: tables, their encoding, and the set of shared instances.

No data leaves the site.
"""
