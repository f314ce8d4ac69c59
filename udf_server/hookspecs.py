"""Every hook a plugin may implement. Mark implementations with `@udf_server.hookimpl`."""

from collections.abc import Iterable

import pluggy

from udf_server.aggregates.base import AggregateFunction
from udf_server.functions import Function

__all__ = ["PROJECT", "hookimpl", "udf_functions", "udf_owner"]

PROJECT = "udf_server"
"""The entry point group, and the name pluggy knows our hooks by."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def udf_functions() -> Iterable[Function | AggregateFunction | type[AggregateFunction]]:  # type: ignore[empty-body]
    """The functions of the plugin. Called once, when the server starts, after every plugin was imported."""


@hookspec
def udf_owner() -> str:  # type: ignore[empty-body]
    """Who to ask about the functions of the plugin, as `Geo team <geo@acme.example>`; callers see it.

    Without it, the maintainers or authors of the plugin's package and its address.
    """
