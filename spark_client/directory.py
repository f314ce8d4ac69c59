"""Directory: asks a server which functions it has."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

from remote_udf.errors import ProtocolViolation
from remote_udf.functions import FunctionSpec, split_name, version_key
from remote_udf.v1 import function_pb2
from spark_client.config import ClientConfig
from spark_client.errors import NotARemoteUdfServer, ServerUnavailable, UnknownFunction
from spark_client.executor.connection import PROTOCOL_VERSION
from spark_client.executor.transport import NoGrpcServer, Transport, TransportLost, transport_for

__all__ = ["find_function", "list_functions"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1


def list_functions(
    config: ClientConfig,
    *,
    transport: Transport | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[FunctionSpec]:
    """Every function of the server in every version, by name, then version; those this client understands.

    Waits up to `connect_seconds` for a server that is just starting. Raises ServerUnavailable, or
    NotARemoteUdfServer for something else at that address, or a server that speaks another protocol.
    """
    transport = transport or transport_for(config)
    deadline = clock() + config.connect_seconds
    while True:
        try:
            response = transport.list_functions(max(deadline - clock(), RETRY_SECONDS))
            break
        except NoGrpcServer as other:
            raise NotARemoteUdfServer(f"what answers at {config.target} is no gRPC server: {other}") from other
        except TransportLost as lost:
            if clock() + RETRY_SECONDS > deadline:
                raise ServerUnavailable(
                    f"no remote-udf server at {config.target} within {config.connect_seconds:g} s: {lost}"
                ) from lost
            sleep(RETRY_SECONDS)
    if PROTOCOL_VERSION not in response.protocol_versions:
        raise NotARemoteUdfServer(
            f"the server at {config.target} (version {response.server_version}) speaks protocol "
            f"{list(response.protocol_versions)}, this client {PROTOCOL_VERSION}"
        )
    return _readable(response.functions)


def _readable(functions: Iterable[function_pb2.FunctionSpec]) -> list[FunctionSpec]:
    """Those that this version understands: one of a newer server must not make the others unavailable."""
    specs = []
    for function in functions:
        try:
            specs.append(FunctionSpec.from_proto(function))
        except ProtocolViolation as problem:
            log.warning(
                "function %s@%s is not available: %s; install a newer remote-udf",
                function.name, function.version, problem,
            )  # fmt: skip
    return specs


def find_function(functions: Sequence[FunctionSpec], name: str) -> FunctionSpec:
    """The function called "name" (its highest version) or "name@version". Raises UnknownFunction."""
    try:
        plain, version = split_name(name)
    except ValueError as error:
        raise UnknownFunction(str(error)) from None
    versions = {spec.version: spec for spec in functions if spec.name == plain}
    if not versions:
        known = ", ".join(sorted({spec.name for spec in functions})) or "none"
        raise UnknownFunction(f"no function {plain!r} (known: {known})")
    chosen = version or max(versions, key=version_key)
    if chosen not in versions:
        known = ", ".join(sorted(versions, key=version_key))
        raise UnknownFunction(f"function {plain!r} has no version {chosen!r} (known: {known})")
    return versions[chosen]
