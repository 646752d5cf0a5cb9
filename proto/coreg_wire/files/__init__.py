"""Files: atomic writes, TOML, plans."""
