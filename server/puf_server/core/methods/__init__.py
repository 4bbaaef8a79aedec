"""Unlearning methods, one file each: what a method asks of whom, and how what comes back is weighed."""
