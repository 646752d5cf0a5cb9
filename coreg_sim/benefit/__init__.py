"""The benefit of joining on a table of the user's own: every method beside each site alone
(`coreg-sim benefit`).
"""
