"""Work on a state directory outside of serving: backup, restore, and reading the audit log."""
