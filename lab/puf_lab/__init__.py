"""Experiments: what forgetting costs and what it leaves behind, measured, compared and drawn."""
