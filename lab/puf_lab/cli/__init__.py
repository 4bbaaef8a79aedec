"""The command line `puf-lab`."""
