"""How functions are called: one runner per execution, one instance per stream."""
