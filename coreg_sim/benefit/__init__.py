"""Does joining pay, on real tables: federations dealt from them, every method beside each site alone (`coreg-sim benefit`)."""
