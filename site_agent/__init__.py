"""A site's agent: it keeps the records, the model and the private key, and sends sealed numbers."""
