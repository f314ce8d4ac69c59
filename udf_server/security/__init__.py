"""Who may reach the server, and what it may call: TLS, bearer tokens, allow rules."""
