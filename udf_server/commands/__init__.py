"""The command `udf-server`: what serves functions, shows them, checks plugins and writes new ones."""

import os

# gRPC reads it once, when it is imported. Below errors it has a line, not of our format, for each failed handshake.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
