"""The web UI on the HTTP port: the catalogue, live rates, and scalar functions to try."""
