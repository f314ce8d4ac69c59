"""The options that a function has on a server: by its declaration, the configuration and its callers."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from remote_udf.effective_options import AggregateOptions, HostedOptions, ScalarOptions, canonical, resolve
from remote_udf.errors import InvalidOption
from remote_udf.functions import FunctionKind
from remote_udf.option_tables import table_of
from remote_udf.options import AGGREGATE_OPTIONS, AT_MOST, CAPS, SCALAR_OPTIONS
from udf_server.declaring.functions import Function

__all__ = ["EVERY", "Configured", "FunctionOptions", "Ignored", "configured", "explained", "ignored_options"]

Configured = Mapping[str, Mapping[str, str]]
"""The options by function name. Those for all functions have the name "*"."""
EVERY = "*"


@dataclass(frozen=True)
class Ignored:
    """An option of the configuration that has no effect."""

    setting: str
    """The setting, such as `functions.place.cache-ttl`."""
    function: str
    """Names and versions of the functions; empty if there is none."""
    reason: str
    expected: bool = False
    """Whether it is a default for all functions, which some functions override."""

    def __str__(self) -> str:
        return f"{self.setting}{f' of {self.function}' if self.function else ''}: {self.reason}"


def configured(function: Function, settings: Configured) -> Function:
    """The function with the options that it has on this server, unless its callers set others."""
    options = {name: text for _, layer in _layers(function, settings) for name, text in layer.items()}
    if options == function.spec.options:
        return function
    return dataclasses.replace(function, spec=dataclasses.replace(function.spec, options=options))


def explained(function: Function, settings: Configured) -> list[tuple[str, str, str]]:
    """Each option of a function, its value without options of callers, and where the value comes from.

    The value of an option that is not set and has no default is empty.
    """
    options = configured(function, settings).spec.options
    kinds = (ScalarOptions, HostedOptions) if function.spec.kind is FunctionKind.SCALAR else (AggregateOptions,)
    values = {name: "" for kind in kinds for name in table_of(kind)}
    values |= {name: text for kind in kinds for name, text in resolve(kind, options).to_text().items()}
    sources: dict[str, str] = {}
    for source, layer in _layers(function, settings):
        sources |= dict.fromkeys(layer, source)
    found = []
    for name, text in values.items():
        source, cap = sources.get(name, "default"), f"{AT_MOST}{name}"
        if text == options.get(cap) != options.get(name):
            source = f"{sources[cap]}.{cap}, which lowers it"
        found.append((name, text, source))
    return [*found, *((name, text, sources[name]) for name, text in options.items() if name.startswith(AT_MOST))]


def _layers(function: Function, settings: Configured) -> list[tuple[str, Mapping[str, str]]]:
    """Where options come from and what they are, by ascending precedence, without those that have no effect."""
    name = function.spec.name
    every, own = (
        {option: text for option, text in settings.get(key, {}).items() if not _without_effect(function, option)}
        for key in (EVERY, name)
    )
    return [(f'functions."{EVERY}"', every), ("declaration", function.spec.options), (f"functions.{name}", own)]


def _without_effect(function: Function, option: str) -> str:
    """Why an option or a cap of the configuration has no effect on the function; empty if it has one."""
    spec, option = function.spec, option.removeprefix(AT_MOST)
    if spec.kind is not FunctionKind.SCALAR:
        return "" if option in AGGREGATE_OPTIONS else "it is an option of scalar functions only"
    if option in AGGREGATE_OPTIONS and option not in SCALAR_OPTIONS:
        return "it is an option of aggregate and process table functions only"
    if option == "cache-ttl" and not spec.deterministic and option not in spec.options:
        return (
            "the function is declared with deterministic=False, so equal rows may have different values; only its "
            "author can declare a cache_ttl"
        )
    if option == "attempt-timeout" and not function.is_async:
        return (
            "the function is a plain `def`, whose calls cannot be cancelled; set a timeout in the client that it uses, "
            "or make it `async def`"
        )
    if option == "retry-empty" and spec.execution.by_batch:
        return "a call of the function has many rows, and those with an empty result cannot be called again alone"
    if option == "hedge-after" and not function.idempotent:
        return "the function is not declared with idempotent=True, so rows must not be called twice"
    if option == "hedge-after" and not function.is_async:
        return "the function is a plain `def`, and second calls are for `async def` functions"
    if option == "max-queue-delay" and not spec.execution.by_batch:
        return "the function is called for each row alone"
    return ""


def ignored_options(functions: Iterable[Function], settings: Configured) -> Iterator[Ignored]:
    """The options that have no effect."""
    by_name: dict[str, list[Function]] = {}
    for function in functions:
        by_name.setdefault(function.spec.name, []).append(function)
    for name, options in settings.items():
        if name == EVERY:
            yield from _ignored_defaults([each for named in by_name.values() for each in named], options)
        elif name not in by_name:
            yield Ignored(f"functions.{name}", "", "there is no such function")
        for function in by_name.get(name, ()):
            caps = configured(function, settings).spec.options
            for option, text in options.items():
                reason, cap = _without_effect(function, option), f"{AT_MOST}{option}"
                if not reason and cap in caps and CAPS[cap].parse(text) > CAPS[cap].parse(caps[cap]):
                    reason = f"{cap} is {caps[cap]}"
                if reason:
                    yield Ignored(f"functions.{name}.{option}", function.spec.key, reason)


def _ignored_defaults(functions: list[Function], options: Mapping[str, str]) -> Iterator[Ignored]:
    """Those of the options for all functions that no function takes, and those that functions declare themselves."""
    for option in options:
        takers = [function for function in functions if not _without_effect(function, option)]
        declared = ", ".join(function.spec.key for function in takers if option in function.spec.options)
        if functions and not takers:
            reasons = {_without_effect(function, option) for function in functions}
            yield Ignored(f"functions.{EVERY}.{option}", "", f"no function takes it: {'; '.join(sorted(reasons))}")
        elif declared:
            yield Ignored(
                f"functions.{EVERY}.{option}", declared,
                f"their declaration sets it; write [functions.NAME] {option}, or cap all with {AT_MOST}{option}",
                expected=True,
            )  # fmt: skip


class FunctionOptions:
    """The options of all streams, and those of one stream, some of which its caller may override."""

    def __init__(self, function: Function) -> None:
        """The function has the options of its declaration and of the configuration, as `configured` merges them."""
        self._function, self._spec = function, function.spec
        self._source = f"call of {function.spec.key}"

    @functools.cached_property
    def hedging(self) -> HostedOptions | None:
        """When second calls are sent; None if they are not. Functions that do not allow them have none."""
        options = resolve(HostedOptions, self._spec.options)
        return None if options.hedge_after is None else options

    @functools.cached_property
    def merging(self) -> HostedOptions | None:
        """How calls of all streams are merged; None if each stream has separate calls.

        Raises InvalidOption if the configuration merges calls of a function that takes the context of a single stream.
        """
        function, options = self._function, resolve(HostedOptions, self._spec.options)
        if options.max_queue_delay is None:
            return None
        if function.context_parameter is not None and not function.takes_batch_context:
            raise InvalidOption(
                f"function {self._spec.key}: option 'max-queue-delay' of the server's configuration: the function "
                "takes the CallContext of a single task, and a merged call has rows of several; remove the option, or "
                "have the function take a BatchContext"
            )
        return options

    def scalar(self, requested: Mapping[str, str]) -> ScalarOptions:
        """The options in effect. The caller's override the others.

        Raises InvalidOption if one is not valid, or if the caller wants a cache for a function that is not
        deterministic and declares none, an `attempt-timeout` for one whose calls cannot be cancelled, or `retry-empty`
        for one whose calls have many rows.
        """
        given = canonical(requested, source=self._source)
        options = resolve(ScalarOptions, self._spec.options, given)
        for name in ("attempt-timeout", "cache-ttl", "retry-empty"):
            if getattr(options, name.replace("-", "_")) and (why := _without_effect(self._function, name)):
                raise InvalidOption(f"{self._source}: option {name!r}: {why}")
        return options

    def aggregate(self, requested: Mapping[str, str]) -> AggregateOptions:
        """The options in effect of an aggregate or process table function. The caller's override the others."""
        given = canonical(requested, source=self._source, known=(AGGREGATE_OPTIONS,))
        return resolve(AggregateOptions, self._spec.options, given)
