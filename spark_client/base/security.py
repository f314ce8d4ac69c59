"""Security: how a job authenticates itself and the server.

Plans send it to the executors, so it has the names of files and environment variables, and not their contents.
They are read where a connection is made: on the driver, and on every executor.
"""

import ipaddress
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from spark_client.base.errors import AccessDenied

__all__ = ["Security"]

_HOST = re.compile(r"(?:dns:(?://[^/]*/)?)?(\[.*\]|[^:]*)(?::\d+)?")


@dataclass(frozen=True)
class Security:
    """TLS and tokens. Paths refer to the machine that connects, so they must be the same on driver and executors.

    If the executors run on this machine, relative paths are those of the driver's folder at the time of `connect`;
    elsewhere each process has its own folder, as with `spark.files` on YARN.

    Raises ValueError for fields that contradict each other.
    """

    tls: bool = False
    """Encrypt, and check the server's certificate against the machine's authorities. The next four fields imply it."""
    ca_file: str | None = None
    """PEM file of the authority of the server's certificate, if the machine does not trust that authority."""
    certificate_file: str | None = None
    """PEM file of this job's certificate, for a server that requires one."""
    key_file: str | None = None
    """PEM file of the private key of the certificate."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the target's name."""
    token_file: str | None = None
    """File with a bearer token. It is read again for each stream."""
    token_variable: str | None = None
    """Environment variable with a bearer token; `spark.executorEnv.NAME` sets it on executors."""
    allow_plaintext: bool = False
    """Allow a token to be sent to other machines without TLS, for example if a service mesh encrypts."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together")
        if self.token_file is not None and self.token_variable is not None:
            raise ValueError("token_file and token_variable: give only one of them")

    def absolute(self) -> "Security":
        """The same with the paths of relative files in the current folder."""
        ca, certificate, key, token = (
            None if path is None else str(Path(path).absolute())
            for path in (self.ca_file, self.certificate_file, self.key_file, self.token_file)
        )
        return replace(self, ca_file=ca, certificate_file=certificate, key_file=key, token_file=token)

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

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of every request. Raises AccessDenied if the token cannot be read."""
        if self.token_file is not None:
            token = _read(self.token_file).decode(errors="replace").strip()
            source = self.token_file
        elif self.token_variable is not None:
            token = os.environ.get(self.token_variable, "").strip()
            source = f"environment variable {self.token_variable}"
        else:
            return ()
        if not token or not token.isascii() or not token.isprintable():
            # The message must not show a token, not even an invalid one.
            raise AccessDenied(f"there is no bearer token in {source} on this machine")
        return (("authorization", f"Bearer {token}"),)

    def credentials(self) -> grpc.ChannelCredentials | None:
        """The channel credentials, or None without TLS. Raises AccessDenied for a file that cannot be read."""
        if not self.encrypted:
            return None
        ca, key, certificate = (
            None if path is None else _read(path) for path in (self.ca_file, self.key_file, self.certificate_file)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def stamp(self) -> tuple[int, ...]:
        """A value that changes when a TLS file changes: the next stream then gets a new connection."""
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
