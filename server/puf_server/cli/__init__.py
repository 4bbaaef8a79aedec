"""The command `puf-server`: makes a federation, serves it, shows it and operates it."""
