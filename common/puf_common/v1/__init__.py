"""Stubs generated from protos/puf/v1 by `make protos`."""
