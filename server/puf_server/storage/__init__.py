"""The state directory of a federation: database, model files, spool, and writes that survive a crash."""
