"""Targets: a check of the address of a server, before anything waits for one."""

import re
import socket
import ssl

from remote_udf.credentials import without_credentials

__all__ = ["require_target", "speaks_tls"]

_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?!/)", re.IGNORECASE)
_WITHOUT_PORT = ("unix:", "unix-abstract:", "vsock:", "xds:", "local:")
"""Schemes of targets that do not end with a port."""
_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?|ipv4:|ipv6:)?(\[[^\]]+\]|[^:/\[\]]+):(\d+)")
PROBE_SECONDS = 2.0


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


def _host(part: str) -> str:
    host = part.rpartition("/")[2].partition(":")[0]
    return host if re.fullmatch(r"[\w.-]+", host) else "host"


def speaks_tls(target: str) -> bool:
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
