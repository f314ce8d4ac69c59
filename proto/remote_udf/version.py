"""The version of the distribution, and the revision of the protocol that its client and its server speak.

The build reads the version from here, and a test compares it with the changelog.
"""

__version__ = "0.2.0"
PROTOCOL_VERSION = 1
