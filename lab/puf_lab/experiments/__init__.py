"""Runs experiments: jobs that depend on each other, their cache, and where they execute."""
