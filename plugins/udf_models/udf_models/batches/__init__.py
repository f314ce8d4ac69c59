"""The Batch API: requests in files, which the service answers within hours for a part of the price."""
