"""Guards of what a function calls: concurrency that adapts, a rate limit, a circuit breaker."""
