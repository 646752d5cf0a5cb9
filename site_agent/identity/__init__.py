"""Who this site is, whom its policy pins, and the keys of a run.

Here is the cryptography; the machine (`site_agent.machine.site`) is handed it as `site_agent.machine.run_keys.Keys`.
"""
