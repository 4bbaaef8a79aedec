"""Code that server, client and lab share: errors, tensors, receipts, networks, settings and files."""
