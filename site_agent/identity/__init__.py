"""The site's half of the masks: keys of a run, peers that its policy pins, and the streams that both of a pair make alike.

Here is the cryptography; the machine (`site_agent.machine.site`) is handed it as `site_agent.machine.masks.Keys`.
"""
