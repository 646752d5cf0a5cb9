"""federation.toml and study files."""
