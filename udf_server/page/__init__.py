"""The web UI on the HTTP port: the catalogue, live rates, and test calls of scalar functions."""
