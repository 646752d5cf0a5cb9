"""The benefit of joining on real tables: every method beside each site alone (`coreg-sim benefit`)."""
