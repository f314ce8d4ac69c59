"""Every hook a plugin may implement. Mark implementations with `@udf_server.hookimpl`.

Each implementation is called by itself, so that an error names its plugin. A wrapper would have nothing to wrap, and a
plugin that has one is refused; the order of calls means nothing, so `tryfirst` and `trylast` change nothing.
"""

from collections.abc import Iterable

import pluggy

from udf_server.aggregate.base import AggregateFunction
from udf_server.declaring.functions import Function
from udf_server.process.base import ProcessTableFunction

__all__ = ["PROJECT", "hookimpl", "udf_functions", "udf_owner"]

PROJECT = "udf_server"
"""The entry point group, and the name pluggy knows our hooks by."""

Offered = Function | AggregateFunction | type[AggregateFunction] | ProcessTableFunction | type[ProcessTableFunction]
"""A function as plugins offer it: made by `udf.scalar`, or an aggregate or process table function, or its class."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def udf_functions() -> Iterable[Offered]:  # type: ignore[empty-body]
    """The functions of the plugin. Called once, when the server starts, after every plugin was imported."""


@hookspec
def udf_owner() -> str:  # type: ignore[empty-body]
    """Who to ask about the functions of the plugin, as `Geo team <geo@acme.example>`; callers see it.

    Without it, the maintainers or authors of the plugin's package and its address.
    """
