"""Receives updates: flow control, header check, quota, value checks, and files in the spool."""
