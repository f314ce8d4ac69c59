"""Runs conformance cases through real Spark and real servers: `python -m tests.conformance --cases FOLDER`."""
