"""The base of all other folders: errors, metrics, and what the server knows of a call. It imports no other folder."""
