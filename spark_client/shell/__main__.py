"""`python -m spark_client.shell`."""

from spark_client.shell.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main(prog_name="remote-udf")
