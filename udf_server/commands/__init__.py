"""The command `udf-server`: what serves functions, shows them, checks plugins and writes new ones."""
