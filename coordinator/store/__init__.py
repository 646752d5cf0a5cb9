"""The run store: SQLite tables and their maintenance."""
