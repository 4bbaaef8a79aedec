"""Computes models from updates: the weighted sum, the rules of methods, and the history they store."""
