"""What sites compute on each other's columns without seeing them; the messages are the only thing that leaves a site."""
