"""Weights choose the version of a name without one for a part of the jobs, as the servers' operator has set it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence

from remote_udf.errors import ProtocolViolation
from remote_udf.option_values import percent

__all__ = ["chosen_version", "united_weights"]

log = logging.getLogger(__name__)


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
        if any(weights.get(key) != share for weights in servers):
            log.warning(
                "servers have different weights of %s (%s): the smallest counts, %s; give them the same file", key,
                ", ".join(sorted({_percent(weights.get(key)) for weights in servers})), _percent(share),
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


def _percent(share: float | None) -> str:
    return "none" if share is None else percent(share)
