"""The run store: SQLite tables, and what other processes read from them."""
