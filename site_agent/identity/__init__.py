"""The site's identity, the members of its studies, and the keys of a run.

This package has the cryptography; the machine receives it through the interfaces of
`site_agent.machine.replica`.
"""
