"""Command lines: settings, parser, exit codes, and the user's own code named by a flag."""
