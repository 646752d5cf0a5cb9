"""Many sites on one machine, wired to the same two machines as the service. The only package that sees both ends."""

DISTRIBUTION = "coreg-federation"
