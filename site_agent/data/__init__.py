"""From an operator's files to arrays: tables, their encoding, and the set of shared instances. What leaves here stays here."""
