"""What a site does in a run, as a value: its view of the data, what it answered, and what it is held to. No socket, no clock."""
