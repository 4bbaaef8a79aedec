"""The web dashboard: a separate process that reads the operator service as a viewer and shows it in a browser."""
