"""Where entries are kept by key for a time: in memory, in a file of the host, in a Redis."""
