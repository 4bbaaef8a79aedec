"""Decides which calls the server accepts: listeners, identities, tokens, revocations and rate limits."""
