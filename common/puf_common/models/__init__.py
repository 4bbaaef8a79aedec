"""Networks by name, and the bytes of a torch module."""
