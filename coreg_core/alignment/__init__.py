"""Which ids several sites have, from a sum: an invertible table of fingerprints."""
