"""What the server and its clients agree on: wire, types, options, error codes."""

from remote_udf.version import __version__

__all__ = ["__version__"]
