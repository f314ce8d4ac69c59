"""The command `udf-server`: serve, list, check, new-plugin, health."""
