"""Checks what must be configured before a server may listen beyond its own machine."""

import ipaddress
import logging
from collections.abc import Iterator

from udf_server.base.errors import InvalidConfig
from udf_server.serving.config import ServerConfig

__all__ = ["check_exposure", "exposed", "is_loopback", "tokens_allowed"]

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than localhost counts as reachable by others."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def tokens_allowed(config: ServerConfig) -> bool:
    """Whether the HTTP server, which has no TLS, accepts bearer tokens."""
    return is_loopback(config.metrics_host) or config.allow_plaintext


def check_exposure(config: ServerConfig) -> None:
    """Raise InvalidConfig if other machines could call without authentication, or if tokens would be unencrypted.

    `allow_anonymous` and `allow_plaintext` allow that. Settings that belong together are checked too.
    """
    for problem in exposed(config):
        raise InvalidConfig(problem)


def exposed(config: ServerConfig) -> Iterator[str]:
    """What `check_exposure` refuses."""
    if bool(config.tls_certificate) != bool(config.tls_key):
        yield "settings 'tls_certificate' and 'tls_key' belong together"
    if config.tls_client_ca and not config.tls_certificate:
        yield "setting 'tls_client_ca' needs 'tls_certificate' and 'tls_key'"
    yield from _exposed_page(config)
    if config.unix_socket or is_loopback(config.host):
        return
    where = f"the server listens on {config.host}, beyond this machine"
    if not config.access_file and not config.tls_client_ca:
        if not config.allow_anonymous:
            yield (
                f"{where}, and would accept every caller: set 'access_file' (bearer tokens) or 'tls_client_ca' (client "
                "certificates), or allow_anonymous=true; see docs/security.md"
            )
        else:
            log.warning("every caller that reaches this address is served", extra={"host": config.host})
    if config.access_file and not config.tls_certificate:
        if not config.allow_plaintext:
            yield (
                f"{where}, and bearer tokens would be sent unencrypted: set 'tls_certificate' and 'tls_key', "
                "or, if a mesh encrypts, allow_plaintext=true; see docs/security.md"
            )
        else:
            log.warning("bearer tokens are accepted without TLS", extra={"host": config.host})


def _exposed_page(config: ServerConfig) -> Iterator[str]:
    """Why users of the web UI could make calls that the access rules do not allow."""
    if not config.try_calls:
        return
    if not config.page:
        yield "setting 'try_calls' needs 'page'"
    if config.tls_client_ca and not config.access_file:
        yield (
            "setting 'try_calls': callers are identified by certificates alone, which the HTTP server cannot check; "
            "set 'access_file' (bearer tokens)"
        )
    if is_loopback(config.metrics_host):
        return
    where = f"setting 'try_calls': the HTTP server listens on {config.metrics_host}, beyond this machine"
    if not config.access_file and not config.allow_anonymous:
        yield f"{where}, and every caller could make calls: set 'access_file', or allow_anonymous=true"
    if config.access_file and not config.allow_plaintext:
        yield (
            f"{where}, and bearer tokens would be sent unencrypted: set 'metrics_host' to 127.0.0.1, or, "
            "if a proxy encrypts, allow_plaintext=true"
        )
