"""Exposure: what a server that listens beyond its own machine must have before it starts."""

import ipaddress
import logging

from udf_server.config import ServerConfig
from udf_server.errors import InvalidConfig

__all__ = ["check_exposure", "is_loopback"]

log = logging.getLogger(__name__)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name other than localhost counts as one that others reach."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(config: ServerConfig) -> None:
    """Raises InvalidConfig for a server that others could call without saying who they are, or tokens could be read of.

    Whoever wants that says so: `allow_anonymous`, `allow_plaintext`. Settings that belong together are checked too.
    """
    if bool(config.tls_certificate) != bool(config.tls_key):
        raise InvalidConfig("settings 'tls_certificate' and 'tls_key' belong together")
    if config.tls_client_ca and not config.tls_certificate:
        raise InvalidConfig("setting 'tls_client_ca' needs 'tls_certificate' and 'tls_key'")
    if config.unix_socket or is_loopback(config.host):
        return
    where = f"the server listens on {config.host}, so beyond this machine"
    if not config.access_file and not config.tls_client_ca:
        if not config.allow_anonymous:
            raise InvalidConfig(
                f"{where}, and would serve anybody: set 'access_file' (bearer tokens) or 'tls_client_ca' (client "
                "certificates), or say allow_anonymous=true; see docs/security.md"
            )
        log.warning("anybody who reaches this address is served", extra={"host": config.host})
    if config.access_file and not config.tls_certificate:
        if not config.allow_plaintext:
            raise InvalidConfig(
                f"{where}, and bearer tokens would cross the network in the open: set 'tls_certificate' and 'tls_key', "
                "or, where a mesh encrypts, say allow_plaintext=true; see docs/security.md"
            )
        log.warning("bearer tokens are taken without TLS", extra={"host": config.host})
