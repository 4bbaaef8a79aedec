"""`puf-lab bench`: speed, memory and growth as ratios to the limits of the machine and to peers, from one run."""
