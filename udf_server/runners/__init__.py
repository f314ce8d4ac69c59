"""Runners call functions: one runner class per kind of execution, one instance per stream."""
