"""The version of the distribution; the build reads it from here, and a test compares the changelog."""

__version__ = "0.1.0"
