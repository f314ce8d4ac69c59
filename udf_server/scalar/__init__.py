"""Scalar functions: how they are declared."""
