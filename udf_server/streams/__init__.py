"""One gRPC stream: admitted, opened, its messages read, counted and answered."""
