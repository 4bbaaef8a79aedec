"""Owns the state of one federation: applies changes, persists them, notifies listeners."""
