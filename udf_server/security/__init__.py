"""Authentication and authorization of callers: TLS, bearer tokens, access rules."""
