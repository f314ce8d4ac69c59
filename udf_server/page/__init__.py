"""The page for people on the HTTP port: the catalogue, live rates, and scalar functions to try."""
