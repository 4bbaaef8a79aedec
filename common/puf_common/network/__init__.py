"""gRPC channels and servers: addresses, TLS, certificates, and errors as statuses."""
