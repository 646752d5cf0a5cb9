"""The site's identity, its pinned peers, and the keys of a run.

This package has the cryptography; the machine receives it through the interfaces of `site_agent.machine.run_keys`.
"""
