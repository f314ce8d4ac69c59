"""What functions keep for longer than a call: entries by key, changed by compare-and-set."""
