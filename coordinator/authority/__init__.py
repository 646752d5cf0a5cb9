"""Who may join: the authority that signs, the certificates themselves, and the list of names that may speak."""
