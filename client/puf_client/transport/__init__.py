"""Calls to the federation's server: the protocol, its gRPC implementation, retries, and credentials."""
