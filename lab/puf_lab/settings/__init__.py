"""Experiments that come with the lab."""
