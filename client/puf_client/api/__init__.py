"""The Python API for training loops in the user's code. `puf_client` exports its names."""
