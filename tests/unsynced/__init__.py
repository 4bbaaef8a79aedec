"""Real processes whose unsynced writes are lost when they are killed, as in a power cut."""
