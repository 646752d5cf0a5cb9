"""Names, keys, certificates, signatures."""
