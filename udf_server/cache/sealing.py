"""Encrypts entries with AES-GCM. The library cryptography is needed for it only."""

import base64
import binascii
import os
from collections.abc import Mapping

from udf_server.base.errors import InvalidConfig
from udf_server.cache.entries import Seal

__all__ = ["sealing"]

NONCE_BYTES = 12


def sealing(variable: str, environment: Mapping[str, str]) -> tuple[Seal, Seal]:
    """Functions that encrypt and decrypt an entry. The key of the row is authenticated with it.

    Args:
        variable: The environment variable with the key: 32 random bytes as base64.
        environment: The environment variables.

    Raises:
        InvalidConfig: The variable is not set or is not such a key, or the library is not installed. The message does
            not have the key.
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - it is optional
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - it is optional
    except ImportError:
        raise InvalidConfig(
            "setting 'cache_encryption_variable' needs cryptography: pip install 'remote-udf[cache]'"
        ) from None
    try:
        secret = base64.b64decode(environment.get(variable, ""), validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != 32:
        raise InvalidConfig(
            f"setting 'cache_encryption_variable': the environment variable {variable} does not have 32 bytes as "
            "base64; make a key with: head -c 32 /dev/urandom | base64"
        )
    cipher = AESGCM(secret)

    def seal(entry: bytes, key: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + cipher.encrypt(nonce, entry, key)

    def unseal(sealed: bytes, key: bytes) -> bytes:
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], key)
        except (InvalidTag, ValueError):
            return b""

    return seal, unseal
