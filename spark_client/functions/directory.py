"""Directory: the functions that the servers of a target have, and the versions of names without one."""

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import overload

from remote_udf.errors import ProtocolViolation
from remote_udf.function_names import split_name, version_key
from remote_udf.functions import FunctionSpec
from remote_udf.option_values import percent
from remote_udf.v1 import function_pb2
from remote_udf.version import PROTOCOL_VERSION
from spark_client.base.config import ClientConfig
from spark_client.base.errors import NotARemoteUdfServer, ServerUnavailable, UnknownFunction
from spark_client.base.identifiers import alike
from spark_client.base.targets import tls_mismatch
from spark_client.base.transport import Transport, TransportLost
from spark_client.executor.stream.transport import NoGrpcServer, transport_for

__all__ = ["Functions", "chosen_version", "list_functions", "united_weights"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
MOST_NAMED = 50
"""Maximum number of functions that a message lists."""


class Functions(Sequence[FunctionSpec]):
    """Every version of every function, sorted by name and version, and the version of each name without one."""

    def __init__(
        self, functions: Iterable[FunctionSpec], versions: Mapping[str, str] | None = None,
        weights: Mapping[str, float] | None = None, ledger: str = "", code: str = "",
    ) -> None:  # fmt: skip
        """`versions` has the versions of names without one; all other names mean their highest version.

        `weights` has the shares of jobs by "name@version", from which `versions` were chosen. `ledger` says where the
        servers count budgets; it is empty if they do not say so, or count apart. `code` identifies the code of the
        functions, if it may be edited while the session lasts.
        """
        self.weights = weights or {}
        self.ledger = ledger
        self.code = code
        self._functions = sorted(functions, key=lambda spec: (spec.name, version_key(spec.version)))
        # In the sorted list, the last function of a name has its highest version.
        self.versions: Mapping[str, str] = {spec.name: spec.version for spec in self._functions} | dict(versions or {})

    @overload
    def __getitem__(self, index: int) -> FunctionSpec: ...
    @overload
    def __getitem__(self, index: slice) -> list[FunctionSpec]: ...
    def __getitem__(self, index: int | slice) -> FunctionSpec | list[FunctionSpec]:
        return self._functions[index]

    def __len__(self) -> int:
        return len(self._functions)

    def replace(self, other: "Functions") -> None:
        """Take over another list, for all who hold this one."""
        self.__dict__.update(other.__dict__)

    def find(self, name: str) -> FunctionSpec:
        """The function for "name@version", or for "name" without a version. Raises UnknownFunction."""
        try:
            plain, version = split_name(name)
        except ValueError as error:
            raise UnknownFunction(str(error)) from None
        versions = {spec.version: spec for spec in self._functions if spec.name == plain}
        if not versions:
            raise UnknownFunction(f"no function {plain!r} {self.near(plain)}")
        chosen = version or self.versions[plain]
        if chosen not in versions:
            raise UnknownFunction(f"function {plain!r} has no version {chosen!r} (known: {', '.join(versions)})")
        return versions[chosen]

    def jobs(self) -> Mapping[str, str]:
        """By "name@version", which jobs get this version, for the functions whose versions have weights."""
        weighted = {split_name(key)[0] for key in self.weights}
        rest = {spec.name: spec.key for spec in self._functions if spec.key not in self.weights}
        return {spec.key: self._jobs_of(spec, rest) for spec in self._functions if spec.name in weighted}

    def _jobs_of(self, spec: FunctionSpec, rest: Mapping[str, str]) -> str:
        share = self.weights.get(spec.key)
        if share is None:
            jobs = "the other jobs" if rest[spec.name] == spec.key else "only jobs that name it"
        else:
            jobs = f"{percent(share)} of jobs"
        return f"{jobs}, this one" if self.versions[spec.name] == spec.version else jobs

    def near(self, name: str, others: Iterable[str] = ()) -> str:
        """In brackets for messages: the names like this one, of `others` too, and the server's as far as they fit."""
        names = sorted({spec.name for spec in self._functions})
        near = alike(name, [*others, *names])
        known = ", ".join(names[:MOST_NAMED]) + (f" and {rest} more" if (rest := len(names) - MOST_NAMED) > 0 else "")
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        return f"({meant}known: {known or 'none'})"


def list_functions(
    config: ClientConfig,
    *,
    transport: Transport | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Functions:
    """List every function of a target's servers that this client supports.

    A name without a version means the highest version that all responding servers have, so that a job planned during
    a rolling update runs on old and new servers. If they have no version in common, it means the highest version. If
    the servers have weights, these choose among the common versions, by the random id of the session.

    Waits up to `connect_seconds` for a server that is starting. Raises ServerUnavailable, or NotARemoteUdfServer if
    another kind of server, or one with another protocol version, answers at that address.
    """
    transport = transport or transport_for(config)
    deadline = clock() + config.connect_seconds
    while True:
        try:
            answers = transport.list_functions(max(deadline - clock(), RETRY_SECONDS))
            break
        except NoGrpcServer as other:
            what = (
                tls_mismatch(config.target, other, encrypted=config.security.encrypted)
                or f"what answers at {config.target} is not a gRPC server: {other}"
            )
            raise NotARemoteUdfServer(what) from None
        except TransportLost as lost:
            if clock() + RETRY_SECONDS > deadline:
                if (mismatch := tls_mismatch(config.target, lost, encrypted=config.security.encrypted)) is not None:
                    raise NotARemoteUdfServer(mismatch) from None
                raise ServerUnavailable(
                    f"no remote-udf server at {config.target} within {config.connect_seconds:g} s: {lost}"
                ) from None
            sleep(RETRY_SECONDS)
    usable = [answer for answer in answers if PROTOCOL_VERSION in answer.protocol_versions]
    if not usable:
        raise NotARemoteUdfServer(
            f"the server at {config.target} (version {answers[0].server_version}) speaks protocol "
            f"{list(answers[0].protocol_versions)}, this client {PROTOCOL_VERSION}"
        )
    weights = united_weights([answer.weights for answer in usable])
    ledgers = {answer.budget for answer in usable}
    ledger = ledgers.pop() if len(ledgers) == 1 else ""
    functions = _united([_readable(answer.functions) for answer in usable], weights, config.session)
    functions.ledger, functions.code = ledger, " ".join(sorted({answer.code for answer in usable} - {""}))
    return functions


def _readable(functions: Iterable[function_pb2.FunctionSpec]) -> list[FunctionSpec]:
    """The functions that this client supports. An unsupported function of a newer server must not hide the others."""
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


def _united(servers: Sequence[Sequence[FunctionSpec]], weights: Mapping[str, float], session: str) -> Functions:
    """The functions of all servers. If one differs between servers, any is used: the others refuse its streams."""
    every = {spec.key: spec for functions in servers for spec in functions}
    common = reduce(set.intersection, ({(spec.key, spec.fingerprint) for spec in functions} for functions in servers))
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for spec in Functions(every[key] for key, _ in common):
        versions[spec.name].append(spec.version)
    chosen = {name: chosen_version(name, known, weights, session) for name, known in versions.items()}
    return Functions(every.values(), chosen, weights)


def united_weights(servers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The weights of all servers, by "name@version". If servers differ, the smallest weight counts.

    A server that gives a version no weight does not count, because its operator's file may be the older one.
    Raises ProtocolViolation for a weight that is not a share.
    """
    united: dict[str, float] = {}
    for weights in servers:
        for key, share in weights.items():
            if not 0.0 <= share <= 1.0:  # not a number is not in between
                raise ProtocolViolation(f"the server announced the weight {share} of {key}; expected 0 to 1")
            united[key] = min(share, united.get(key, share))
    for key, share in united.items():
        given = {percent(weights[key]) if key in weights else "none" for weights in servers}
        if any(weights.get(key) != share for weights in servers):
            log.warning(
                "servers have different weights of %s (%s): the smallest counts, %s; give them the same file",
                key, ", ".join(sorted(given)), percent(share),
            )  # fmt: skip
    return united


def chosen_version(name: str, versions: Sequence[str], weights: Mapping[str, float], session: str) -> str:
    """The version of a name without one, the same for each query of a session.

    Args:
        name: The name of the function.
        versions: Its versions, in ascending order; at least one.
        weights: Shares by "name@version".
        session: The random id of the session, from which the choice is drawn.
    """
    digest = hashlib.sha256(f"{session} {name}".encode()).digest()
    left = int.from_bytes(digest[:8]) / 2**64
    for version in versions:
        left -= weights.get(f"{name}@{version}", 0.0)
        if left < 0:
            return version
    others = [version for version in versions if f"{name}@{version}" not in weights]
    return (others or versions)[-1]
