"""The version of the distribution. The build reads it from here, and a test compares it with the changelog."""

__version__ = "0.1.0"
