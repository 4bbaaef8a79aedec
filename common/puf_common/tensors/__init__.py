"""Tensor bytes: manifest, chunks, digests, encodings, scaling and model files."""
