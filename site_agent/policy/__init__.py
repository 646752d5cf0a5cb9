"""The policy of a site: what it accepts in a plan."""
