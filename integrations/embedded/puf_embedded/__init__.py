"""PUF's rules inside the server of another framework: rounds, requests, receipts. Nothing here imports that framework."""
