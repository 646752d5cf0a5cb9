"""A site's agent: keeps the records, the model and the private key, and answers the coordinator with predictions."""

DISTRIBUTION = "coreg-federation"
