"""Measurements of the whole system: `python -m benchmarks --suite scalar`."""

import os

# Java and servers are started by a fork. gRPC reads this variable when it is imported; without it, every fork prepares
# for a child that uses the parent's channels, and such a child sometimes hangs.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
