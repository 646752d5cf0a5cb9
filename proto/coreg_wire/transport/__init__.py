"""Messages as protobuf frames."""
