"""Security: how a job shows who it is, and knows that the server is the right one.

Travels to the executors inside plans, so it names files and environment variables and holds none of what is
in them. They are read where a connection is made: on the driver, and on every executor.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from spark_client.base.errors import AccessDenied

__all__ = ["Security"]

_HOST = re.compile(r"(?:dns:(?://[^/]*/)?)?(\[.*\]|[^:]*)(?::\d+)?")


@dataclass(frozen=True)
class Security:
    """TLS and tokens. Paths are those of the machine that connects, so the same on driver and executors.

    Raises ValueError for fields that make no sense together.
    """

    tls: bool = False
    """Encrypt, and check the server's certificate against the machine's authorities. Implied by the next four."""
    ca_file: str | None = None
    """PEM file of the authority of the server's certificate, if it is not one the machine knows."""
    certificate_file: str | None = None
    """PEM file of this job's certificate, for a server that asks for one."""
    key_file: str | None = None
    """PEM file of its private key."""
    server_name: str | None = None
    """The name in the server's certificate, if the target has another one."""
    token_file: str | None = None
    """File of a bearer token, read again for each stream."""
    token_variable: str | None = None
    """Environment variable of a bearer token; `spark.executorEnv.NAME` sets one on executors."""
    allow_plaintext: bool = False
    """Send the token without TLS beyond this machine, as behind a mesh that encrypts."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.token_file is not None and self.token_variable is not None:
            raise ValueError("token_file and token_variable: give only one of them")

    @property
    def encrypted(self) -> bool:
        return self.tls or any((self.ca_file, self.certificate_file, self.server_name))

    @property
    def has_token(self) -> bool:
        return self.token_file is not None or self.token_variable is not None

    def check(self, target: str) -> None:
        """Raises ValueError if a token would be sent unencrypted."""
        if self.has_token and not self.encrypted and not self.allow_plaintext and not _is_local(target):
            raise ValueError(
                f"a bearer token for {target} would be sent unencrypted: pass tls=True, or, if a mesh "
                "encrypts, allow_plaintext=True"
            )

    def metadata(self) -> Sequence[tuple[str, str]]:
        """What goes with every request. Raises AccessDenied if the token cannot be read."""
        if self.token_file is not None:
            token = _read(self.token_file).decode(errors="replace").strip()
            source = self.token_file
        elif self.token_variable is not None:
            token = os.environ.get(self.token_variable, "").strip()
            source = f"environment variable {self.token_variable}"
        else:
            return ()
        if not token or not token.isascii() or not token.isprintable():
            # Not shown, whatever it is.
            raise AccessDenied(f"there is no bearer token in {source} on this machine")
        return (("authorization", f"Bearer {token}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """None without TLS. Raises AccessDenied for a file that cannot be read."""
        if not self.encrypted:
            return None
        ca, key, certificate = (
            None if path is None else _read(path) for path in (self.ca_file, self.key_file, self.certificate_file)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file of TLS does: the next stream then gets a connection of its own."""
        paths = [path for path in (self.ca_file, self.certificate_file, self.key_file) if path is not None]
        try:
            return tuple(Path(path).stat().st_mtime_ns for path in paths)
        except OSError as error:
            raise AccessDenied(f"cannot read {error.filename} on this machine: {error.strerror}") from error


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AccessDenied(f"cannot read {path} on this machine: {error.strerror}") from error


def _is_local(target: str) -> bool:
    if target.startswith(("unix:", "local:")):
        return True
    found = _HOST.fullmatch(target)
    host = found[1].strip("[]") if found else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
