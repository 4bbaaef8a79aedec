"""The running server: listeners, background tasks, metrics, and an orderly end."""
