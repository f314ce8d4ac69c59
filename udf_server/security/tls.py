"""The server's TLS credentials from files, which are read again at the first handshake after a change."""

import ssl
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import grpc

from udf_server.base.errors import InvalidConfig
from udf_server.security.files import Watch, WatchedFiles

__all__ = ["server_credentials"]


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
