"""One value that describes an experiment, and what is derived from it: server configuration, client options, flags."""
