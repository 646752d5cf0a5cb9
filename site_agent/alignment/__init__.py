"""Private alignment of ids: points of Curve25519, and the sealing of lists between two sites."""
