"""The life of a gRPC stream: admission, opening, reading, accounting and answering of its messages."""
