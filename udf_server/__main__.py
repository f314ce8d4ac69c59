"""`python -m udf_server` is `udf-server`."""

from remote_udf.commands import udf_server

udf_server()
