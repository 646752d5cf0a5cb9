"""May this site do that? `objections` answers it from a plan, the policy, this site's rows and its
memory of earlier runs.
"""
