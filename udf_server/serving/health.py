"""Asks the server with these settings, from the same machine, for its health, as a container's health check does."""

import ipaddress
import urllib.error
import urllib.request

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig

__all__ = ["WAIT_SECONDS", "health_url", "is_well"]

WAIT_SECONDS = 3.0
"""Timeout of the request. It is well below the timeouts that orchestrators use for health checks."""


def health_url(config: ServerConfig, *, alive: bool = False) -> str:
    """The URL of the readiness check, or with `alive` of the liveness check. Raises InvalidConfig for port 0."""
    if config.metrics_port == 0:
        raise InvalidConfig("setting 'metrics_port': 0 picks a free port, which only the server itself knows")
    host = config.metrics_host
    try:
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            host = "127.0.0.1" if address.version == 4 else "::1"
    except ValueError:
        pass  # the host is a name
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{config.metrics_port}/{'livez' if alive else 'readyz'}"


def is_well(url: str) -> tuple[bool, str]:
    """Whether the check succeeds, and a message. It does not raise: if there is no answer, the check fails."""
    # No proxy is used, because the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=WAIT_SECONDS) as answer:
            return True, f"{url}: {answer.read(80).decode(errors='replace').strip()}"
    except urllib.error.HTTPError as error:
        with error:
            return False, f"{url}: {error.code} {error.reason}"
    except OSError as error:
        return False, f"{url}: {getattr(error, 'reason', error)}"
