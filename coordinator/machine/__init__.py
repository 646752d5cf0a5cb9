"""A run as a value: what it remembers, what is going on now, and what each event makes of both. No socket, no clock."""
