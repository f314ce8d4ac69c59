"""Targets and paths: checks of the addresses that users give, before anything waits for one or shows it."""

import re
import socket
import ssl
from pathlib import Path

from remote_udf.credentials import has_credentials, without_credentials
from spark_client.base.errors import PlanError

__all__ = ["absolute_target", "require_no_credentials", "require_target", "tls_mismatch"]

_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?!/)", re.IGNORECASE)
_WITHOUT_PORT = ("unix:", "unix-abstract:", "vsock:", "xds:", "local:")
"""Schemes of targets that do not end with a port."""
_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?|ipv4:|ipv6:)?(\[[^\]]+\]|[^:/\[\]]+):(\d+)")
PROBE_SECONDS = 2.0
_PLAINTEXT, _UNTRUSTED = "WRONG_VERSION_NUMBER", "CERTIFICATE_VERIFY_FAILED"
"""Texts of gRPC if a handshake of TLS fails. There is no separate status code for that."""


def require_target(target: str) -> None:
    """Raises ValueError unless each address of the target is complete."""
    for part in (each.strip() for each in target.split(",")):
        shown = without_credentials(part)
        if _URL.match(part) and not part.startswith("dns://"):
            scheme, _, rest = shown.partition("://")
            address = re.split("[/?#;]", rest.rpartition("@")[2])[0] or "host:50051"
            tls = ", and security=Security(tls=True) if the server uses TLS" if scheme.lower() == "https" else ""
            raise ValueError(f"target {shown!r} is a URL; gRPC takes an address: write {address!r}{tls}")
        if part.startswith(_WITHOUT_PORT):
            continue
        found = _HOST_PORT.fullmatch(part)
        shown = f"...@{part.rpartition('@')[2]}" if "@" in part else shown
        if found is None or int(found[2]) > 65_535:
            raise ValueError(
                f'target {shown!r} is not an address of a server: expected "host:port", such as '
                f'"{_host(shown)}:50051", "dns:///name:port", "unix:/path", or several with commas between them'
            )


def absolute_target(target: str) -> str:
    """The target with the paths of its sockets, or of its plugin's file, in the current folder."""
    if target.startswith("local:"):
        return _absolute(target) if target.endswith(".py") else target
    return ",".join(_absolute(part.strip()) if part.strip().startswith("unix:") else part for part in target.split(","))


def _absolute(part: str) -> str:
    scheme, _, path = part.partition(":")
    return part if path.startswith("/") else f"{scheme}:{Path(path).absolute()}"


def _host(part: str) -> str:
    host = part.rpartition("/")[2].partition(":")[0]
    return host if re.fullmatch(r"[\w.-]+", host) else "host"


def _speaks_tls(target: str) -> bool:
    """Whether the first address of the target answers a TLS handshake. It reads no certificate and sends no secret."""
    found = _HOST_PORT.fullmatch(target.partition(",")[0].strip())
    if found is None:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        address = (found[1].strip("[]"), int(found[2]))
        with (
            socket.create_connection(address, PROBE_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=address[0]),
        ):
            return True
    except (OSError, ValueError):
        return False


def tls_mismatch(target: str, problem: Exception, *, encrypted: bool) -> str | None:
    """What to correct if only one side uses TLS, or if the certificate is not accepted; otherwise None.

    `encrypted` says whether this side uses TLS, and `problem` is what gRPC has reported.
    """
    if encrypted:
        if _PLAINTEXT in str(problem):
            return f"the server at {target} does not use TLS: connect without tls, ca_file and the like"
        if _UNTRUSTED in str(problem):
            return (
                f"the certificate of the server at {target} is not accepted: set ca_file of Security to the "
                f"file of its authority, or server_name to the name in the certificate: {problem}"
            )
    elif _speaks_tls(target):
        return (
            f"the server at {target} uses TLS: connect(..., security=Security(tls=True)), with ca_file if its "
            "authority is your own"
        )
    return None


def require_no_credentials(path: str, where: str) -> None:
    """Raise PlanError, which does not show the path, if it has credentials. `where` is the function of the user."""
    if has_credentials(str(path)):
        raise PlanError(
            f"{where}: the path has credentials, such as a password, a key or a token; set them in the environment of "
            "the workers instead"
        )
