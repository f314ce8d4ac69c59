"""Guards protect the service that a function calls: adaptive concurrency, a rate limit, a circuit breaker."""
