"""`python -m udf_server` is `udf-server`."""

from udf_server.commands.cli import main

main()
