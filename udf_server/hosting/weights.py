"""Weights are the shares of jobs that get a version of a function, `[weights]` of the server's file."""

from collections import defaultdict
from collections.abc import Mapping

from remote_udf.errors import InvalidOption
from remote_udf.functions import split_name
from remote_udf.option_values import fraction, percent
from udf_server.base.errors import InvalidConfig
from udf_server.hosting.registry import Registry

__all__ = ["check_weights", "parse_weights"]

ROUNDING = 1e-9
"""Shares such as 10 %, 20 % and 70 % add up to 1 only approximately."""


def parse_weights(table: Mapping[str, str | float]) -> dict[str, float]:
    """The shares, from 0 to 1, by "name@version". Raises InvalidConfig, which names the key."""
    weights: dict[str, float] = {}
    sums: defaultdict[str, float] = defaultdict(float)
    for key, value in table.items():
        source = f'setting weights."{key}"'
        try:
            name, version = split_name(key)
        except ValueError as error:
            raise InvalidConfig(f"{source}: {error}") from None
        if not version:
            raise InvalidConfig(f'{source}: a weight is for one version of a function: write "{name}@2"')
        try:
            weights[key] = fraction(value)
        except InvalidOption as error:
            raise InvalidConfig(f"{source}: {error}") from None
        sums[name] += weights[key]
        if sums[name] > 1 + ROUNDING:
            shares = " + ".join(percent(weights[each]) for each in weights if each.partition("@")[0] == name)
            raise InvalidConfig(
                f"setting weights: the versions of {name} have {shares} of the jobs; expected at most 100 %"
            )
    return weights


def check_weights(weights: Mapping[str, float], registry: Registry) -> None:
    """Raise InvalidConfig if a version is not in the registry, or if no version has the rest of the jobs."""
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for function in registry:
        versions[function.spec.name].append(function.spec.version)
    for key in weights:
        name, version = split_name(key)
        if name not in versions:
            raise InvalidConfig(
                f'setting weights."{key}": there is no such function (known: {", ".join(versions) or "none"})'
            )
        if version not in versions[name]:
            raise InvalidConfig(
                f'setting weights."{key}": function {name} has no version {version} (known: '
                f"{', '.join(versions[name])})"
            )
    for name in {split_name(key)[0] for key in weights}:
        shares = [weights.get(f"{name}@{version}") for version in versions[name]]
        given = [share for share in shares if share is not None]
        if len(given) == len(shares) and sum(given) < 1 - ROUNDING:
            raise InvalidConfig(
                f"setting weights: every version of {name} has a weight, and together they have "
                f"{percent(sum(given))} of the jobs; remove the weight of the version that gets the rest"
            )
