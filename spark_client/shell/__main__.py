"""`python -m spark_client.shell`."""

from spark_client.shell.cli import main

main(prog_name="remote-udf")
