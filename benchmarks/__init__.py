"""Measurements of the whole system: `python -m benchmarks --suite scalar`."""

import os

# Java and servers are started by a fork. gRPC, which reads this when it is imported, would prepare every fork for a
# child that uses its channels; sometimes the child does not survive that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
