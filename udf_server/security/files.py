"""WatchedFiles reads files again when they change, so that secrets and TLS credentials change without a restart."""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypedDict, TypeVar, Unpack

import grpc

from udf_server.base.errors import InvalidConfig

__all__ = ["Watch", "WatchedFiles", "server_credentials"]

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Minimum interval between two checks for changes."""

Stamp = tuple[tuple[int, int, int], ...]


class Watch(TypedDict, total=False):
    """How files are watched."""

    on_reload: Callable[[bool], object]
    clock: Callable[[], float]
    look_seconds: float


class WatchedFiles(Generic[T]):
    """A value parsed from files. Safe to use from any thread.

    If a changed file cannot be read, the value does not change: a half-written file must not reject every
    caller. The failure is logged and reported by `on_reload(False)`.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        parse: Callable[[Sequence[bytes]], T],
        *,
        on_reload: Callable[[bool], object] = lambda good: None,
        clock: Callable[[], float] = time.monotonic,
        look_seconds: float | None = None,
    ) -> None:
        """Read the files. `parse` gets their contents in order. Raises InvalidConfig, as `parse` may.

        `look_seconds` is the minimum interval between two checks for changes; LOOK_SECONDS by default.
        """
        # A plugin may change the folder of the process, and a revoked token would stay valid.
        self._paths = [path.absolute() for path in paths]
        self._parse = parse
        self._on_reload = on_reload
        self._clock, self._look_seconds = clock, LOOK_SECONDS if look_seconds is None else look_seconds
        self._lock = threading.Lock()
        try:
            self._seen = self._stamp()
            self._value = self._read()
        except OSError as error:
            raise InvalidConfig(f"cannot read {error.filename}: {error.strerror}") from error
        self._looked = clock()

    def current(self) -> T:
        """The value. The files were checked at most `look_seconds` ago."""
        with self._lock:
            if self._clock() - self._looked >= self._look_seconds:
                self._looked = self._clock()
                self._look()
            return self._value

    def _look(self) -> None:
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            # The files are not read again until they change again, even if they cannot be read now.
            self._seen = stamp
            self._value = self._read()
        except (OSError, InvalidConfig) as error:
            log.error("reload failed", extra={"files": self._names(), "why": str(error)})
            self._on_reload(False)
        else:
            log.info("reloaded", extra={"files": self._names()})
            self._on_reload(True)

    def _stamp(self) -> Stamp:
        stats = [path.stat() for path in self._paths]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)

    def _read(self) -> T:
        return self._parse([path.read_bytes() for path in self._paths])

    def _names(self) -> str:
        return ", ".join(map(str, self._paths))


def server_credentials(
    certificate: Path, key: Path, client_ca: Path | None = None, **watch: Unpack[Watch]
) -> grpc.ServerCredentials:
    """Credentials from PEM files. With `client_ca`, clients without a certificate signed by it are rejected.

    Open streams keep the certificate with which they began. Raises InvalidConfig if files cannot be
    read or do not belong together.
    """
    paths = [certificate, key, *([client_ca] if client_ca else [])]

    def parse(contents: Sequence[bytes]) -> grpc.ServerCertificateConfiguration:
        _check(certificate, key, contents[2] if client_ca else None)
        return grpc.ssl_server_certificate_configuration(
            [(contents[1], contents[0])], root_certificates=contents[2] if client_ca else None
        )

    files = WatchedFiles(paths, parse, **watch)
    used, lock = files.current(), threading.Lock()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """The configuration if it is not in use yet. gRPC calls this at each handshake, on several threads."""
        nonlocal used
        with lock:
            before, used = used, files.current()
            # gRPC replaces its context by whatever is returned, and may crash if another handshake uses it then.
            return None if used is before else used

    return grpc.dynamic_ssl_server_credentials(
        used,
        changed,  # type: ignore[arg-type] # its type does not allow None, which means no change
        require_client_authentication=client_ca is not None,
    )


def _check(certificate: Path, key: Path, client_ca: bytes | None) -> None:
    """Raise InvalidConfig if the key does not match: gRPC would only report that handshakes fail."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, Python would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"TLS certificate {certificate} with key {key}: {error}") from error
    if client_ca is not None:
        try:
            context.load_verify_locations(cadata=client_ca.decode())
        except (UnicodeDecodeError, ssl.SSLError) as error:
            raise InvalidConfig(f"the authority of client certificates: {error}") from error
