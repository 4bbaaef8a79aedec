"""A worker's membership in a federation: assignments from the server, updates to it, and agreement on forgotten samples."""
