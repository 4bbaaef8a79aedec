"""OpenTelemetry traces of rounds and requests, across server and clients: `--trace`."""
