"""Files that survive a power cut, private files, and files that are read again after a change."""
