"""agent.toml, environment and command-line options."""
