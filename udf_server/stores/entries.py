"""Entries are outcomes as bytes, in the form in which stores keep them: a header with a checksum, then the outcome.

They may be encrypted with AES-GCM. The library cryptography is needed for that only.
"""

import base64
import binascii
import itertools
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import Sealing
from udf_server.stores.blocks import Indexes, Recalled
from udf_server.stores.row_bytes import Malformed, bytes_of_rows, rows_of_bytes

__all__ = ["EntryCodec", "Found", "packed", "sealing"]

_HEADER = struct.Struct("<2sBxId")
"""Mark, kind, checksum of the key and the outcome, and the time at which it was written, in seconds since 1970."""
_MARK = b"U2"
_VALUE, _ERROR = 0, 1
_HEADER_BYTES = _HEADER.size
NONCE_BYTES = 12
AHEAD_SECONDS = 60.0
"""An entry that was written later than this from now is too old: nobody knows when it was written."""


@dataclass(frozen=True)
class Found:
    """Outcomes that were read: values and errors by position in the entries that were given, and the bytes read."""

    rows: Sequence[int] | Indexes
    values: pa.Array
    errors: dict[int, RowError]


class EntryCodec:
    """Writes and reads entries of one result type. Safe to use from any thread."""

    def __init__(self, result: pa.DataType, wall: Callable[[], float], sealing: Sealing | None = None) -> None:
        """`wall` is the time in seconds since 1970."""
        self._result, self._wall, self._sealing = result, wall, sealing

    def of_values(self, values: pa.Array, keys: Sequence[bytes]) -> list[bytes]:
        """An entry for each value."""
        return self._sealed(packed(values, itertools.repeat(self._wall(), len(values)), keys), keys)

    def of_error(self, error: RowError, key: bytes) -> bytes:
        """An entry for an error. Its traceback is not kept."""
        row = json.dumps([error.code.value, error.message, error.attempts]).encode(errors="surrogatepass")
        return self._sealed([_HEADER.pack(_MARK, _ERROR, _checksum(key, row), self._wall()) + row], [key])[0]

    def read(
        self, entries: Sequence[bytes | None], keys: Sequence[bytes], ages: tuple[float, float], damaged: list[int]
    ) -> Found:
        """The outcomes of the entries that are valid and not too old.

        Args:
            entries: Entries by position; None for a row without one.
            keys: The keys of the rows.
            ages: The maximum age of values and of errors, in seconds.
            damaged: Gets the positions of entries that are neither too old nor readable.
        """
        now, unpack = self._wall(), _HEADER.unpack_from
        rows: list[int] = []
        payloads: list[bytes] = []
        errors: dict[int, RowError] = {}
        for place, entry in enumerate(entries):
            if entry is None:
                continue
            if self._sealing is not None:
                entry = self._sealing.unseal(entry, keys[place])
            if len(entry) < _HEADER_BYTES:
                damaged.append(place)
                continue
            mark, kind, checksum, written = unpack(entry)
            payload = entry[_HEADER_BYTES:]
            if mark != _MARK or kind not in (_VALUE, _ERROR) or _checksum(keys[place], payload) != checksum:
                damaged.append(place)
            elif not -AHEAD_SECONDS < now - written < ages[kind]:
                continue
            elif kind == _VALUE:
                rows.append(place)
                payloads.append(payload)
            elif (error := _error(payload)) is None:
                damaged.append(place)
            else:
                errors[place] = error
        return Found(*self._decoded(rows, payloads, damaged), errors)

    def of_recalled(
        self, recalled: Sequence[Recalled], keys: Sequence[bytes], ages: tuple[float, float], damaged: list[int]
    ) -> Found:
        """The outcomes of rows of a store in memory. The arguments are those of `read`."""
        now, errors = self._wall(), dict[int, RowError]()
        rows, values = [np.zeros(0, np.int64)], [pa.nulls(0, self._result)]
        for part in recalled:
            taken = part.taken()
            if taken.entries:
                bad: list[int] = []
                found = self.read(taken.values.to_pylist(), [keys[row] for row in part.rows.tolist()], ages, bad)
                damaged += part.rows[bad].tolist()
                rows.append(part.rows[np.array(found.rows, np.int64)])
                values.append(found.values)
                errors |= {int(part.rows[place]): error for place, error in found.errors.items()}
            elif taken.values.type == self._result:
                age = now - taken.written
                young = (age > -AHEAD_SECONDS) & (age < ages[0])
                rows.append(part.rows[young])
                values.append(taken.values if young.all() else taken.values.filter(pa.array(young)))
        return Found(np.concatenate(rows), pa.concat_arrays(values), errors)

    def _decoded(self, rows: list[int], payloads: list[bytes], damaged: list[int]) -> tuple[list[int], pa.Array]:
        try:
            return rows, rows_of_bytes(payloads, self._result)
        except Malformed:
            pass
        # Only the rows that are damaged are lost.
        good: list[int] = []
        arrays = [pa.nulls(0, self._result)]
        for row, payload in zip(rows, payloads, strict=True):
            try:
                arrays.append(rows_of_bytes([payload], self._result))
                good.append(row)
            except Malformed:
                damaged.append(row)
        return good, pa.concat_arrays(arrays)

    def _sealed(self, entries: list[bytes], keys: Sequence[bytes]) -> list[bytes]:
        if self._sealing is None:
            return entries
        return [self._sealing.seal(entry, key) for entry, key in zip(entries, keys, strict=True)]


def packed(values: pa.Array, written: Iterable[float], keys: Sequence[bytes]) -> list[bytes]:
    """An entry for each value, which is not encrypted, with the time at which it was written."""
    pack, rows = _HEADER.pack, bytes_of_rows(values).to_pylist()
    return [
        pack(_MARK, _VALUE, _checksum(key, row), time) + row for row, time, key in zip(rows, written, keys, strict=True)
    ]


def sealing(variable: str, environment: Mapping[str, str]) -> Sealing:
    """What encrypts and decrypts an entry. The key of the row is authenticated with it.

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

    return Sealing(seal, unseal)


def _checksum(key: bytes, payload: bytes) -> int:
    """It has the key, so that an entry is no other key's, wherever a store returns it."""
    return zlib.crc32(payload, zlib.crc32(key))


def _error(payload: bytes) -> RowError | None:
    try:
        code, message, attempts = json.loads(payload)
        return RowError(ErrorCode(code), str(message), int(attempts))
    except (ValueError, TypeError, OverflowError, RecursionError):  # `Infinity` attempts, or a list in lists
        return None
