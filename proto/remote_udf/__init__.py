"""The protocol, types, options and error codes that the server and its clients share."""

from remote_udf.version import __version__

__all__ = ["__version__"]
