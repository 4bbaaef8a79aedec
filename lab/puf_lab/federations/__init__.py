"""Federations that the lab drives: in this process, or as a server process and client processes."""
