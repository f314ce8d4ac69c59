"""`python -m udf_server` is `udf-server`."""

from udf_server.cli import main

main()
