"""Hostile bytes by the thousand: through real handlers behind real gRPC, and raw on the port."""
