"""The certificate authority of a federation, and the signing of clients' requests."""
