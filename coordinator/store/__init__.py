"""The run store: SQLite tables, checksums, maintenance."""
