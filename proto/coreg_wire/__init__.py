"""What travels between a site and the coordinator: the protobuf messages, their codec, names and TLS credentials."""

DISTRIBUTION = "coreg-federation"
