"""Plugin functions made from words.

Cases use one name for many behaviours. Each distinct description becomes a version of its name, so one
server has them all. The runner and the server read the same folder, so they assign equal numbers.
"""

import asyncio
import inspect
import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Annotated, Any, Union

import udf_server as udf
from remote_udf.ddl import parse_type as arrow_type
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.column_types import ColumnType, UnknownType, parse_type
from tests.conformance.functions.aggregates import build_aggregate, is_aggregate
from tests.conformance.functions.behaviour import Behaviour, read_behaviour
from tests.conformance.functions.expressions import NotUnderstood, Scope
from tests.conformance.functions.failures import Failure, read_failure

__all__ = ["Built", "build", "built_functions", "overloads", "scalar_kinds"]

scalar_kinds = frozenset(
    {"async_scalar", "scalar", "vectorised_scalar", "vectorized_scalar", "async_table", "table_function", "table"}
)
"""Kinds of functions that give one value per row; a table function's is the array of its rows."""

_PYTHON = {"string": str, "boolean": bool, "float": float, "double": float}
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4}
_OVERLOAD = re.compile(
    r";?\s*an? (\w+)-argument overload \w+\(([^)]*)\) returns (?:([A-Z]+(?:<[^>]*>)?) )?([^;]+)", re.IGNORECASE
)


@dataclass(frozen=True)
class Built:
    """A plugin function and the words from which it was made.

    `local` evaluates a call immediately, without failures; aggregates have none. `failure_text` is part of every
    error it raises.
    """

    words: FunctionWords
    function: udf.Function
    local: Callable[..., Any] | None
    failure_text: str

    @property
    def key(self) -> str:
        return self.function.spec.key


def built_functions(cases: Iterable[Case]) -> tuple[list[Built], dict[FunctionWords, str]]:
    """Returns the functions of the cases that can be built, and the reason for each that cannot."""
    distinct = {
        words: None
        for case in cases
        for told in case.functions
        if told.kind in scalar_kinds or is_aggregate(told)
        for words in overloads(told)
    }
    built: list[Built] = []
    missing: dict[FunctionWords, str] = {}
    versions: dict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
    for words in distinct:
        try:
            # In Spark, names must differ by more than case.
            version = str(next(versions[words.name.lower()]))
            if is_aggregate(words):
                built.append(Built(words, build_aggregate(words, version, list(distinct)), None, words.failure))
            else:
                built.append(build(words, version))
        except (NotUnderstood, UnknownType, udf.DeclarationError) as error:
            missing[words] = str(error)
    return built, missing


def overloads(words: FunctionWords) -> list[FunctionWords]:
    """Returns the function, and its overloads with other numbers of arguments as separate functions."""
    found = [words]
    for match in _OVERLOAD.finditer(words.behaviour):
        arguments = tuple(
            (name, type_)
            for name, _, type_ in (part.strip().partition(" ") for part in match[2].split(",") if part.strip())
        )
        if len(arguments) == (_COUNTS.get(match[1].lower()) or 0):
            returns = match[3] or words.returns
            found.append(replace(words, arguments=arguments, returns=returns, behaviour=f"returns {match[4].strip()}"))
    if len(found) > 1:
        found[0] = replace(words, behaviour=_OVERLOAD.sub("", words.behaviour))
    return found


def build(words: FunctionWords, version: str) -> Built:
    """The function. Raises NotUnderstood, UnknownType or DeclarationError."""
    names = tuple(name for name, _ in words.arguments)
    behaviour = read_behaviour(words.behaviour, names, words.returns)
    failure = read_failure(words.failure)
    returns = parse_type(words.returns)
    evaluate = _Evaluation(names, returns, behaviour, failure)
    if words.kind.startswith("async"):

        async def body(*values: Any, context: udf.CallContext) -> Any:
            scope = evaluate.scope(values, context)
            await asyncio.sleep(behaviour.delay(scope))
            if evaluate.hangs(scope):
                await asyncio.Event().wait()
            return evaluate.outcome(scope)

        code: Callable[..., Any] = body
    else:

        def body_on_thread(*values: Any, context: udf.CallContext) -> Any:
            scope = evaluate.scope(values, context)
            time.sleep(behaviour.delay(scope))
            return evaluate.outcome(scope)

        code = body_on_thread
    code.__signature__ = _signature(words)  # type: ignore[attr-defined]
    code.__annotations__ = {
        **{name: _annotation(type_) for name, type_ in words.arguments},
        "context": udf.CallContext,
    }
    function = udf.scalar(
        name=words.name,
        version=version,
        description=f"{words.behaviour} Failure: {words.failure or 'none'}.",
        returns=arrow_type(returns.ddl),
    )(code)
    return Built(words, function, evaluate.local, re.sub(r"\bn$", "", failure.message))


def _shaped(value: Any, type_: ColumnType) -> Any:
    """Returns the value in the form of the type: rows by name, numbers of its kind."""
    if value is None:
        return None
    match type_.kind:
        case "struct":
            named = value if isinstance(value, dict) else dict(zip(type_.names, value, strict=True))
            return {name: _shaped(named[name], part) for name, part in zip(type_.names, type_.parts, strict=True)}
        case "array":
            return [_shaped(item, type_.parts[0]) for item in value]
        case "float" | "double":
            return float(value)
        case "decimal":
            return Decimal(str(value))
        case _:
            return value


class _Evaluation:
    """A function's calls, counted per planned call: planning a query again starts a new count."""

    def __init__(self, names: Sequence[str], returns: ColumnType, behaviour: Behaviour, failure: Failure) -> None:
        self._names = names
        self._returns = returns
        self._behaviour = behaviour
        self._failure = failure
        self._calls: defaultdict[tuple[str, Any], int] = defaultdict(int)

    def scope(self, values: Sequence[Any], context: udf.CallContext) -> Scope:
        arguments = dict(zip(self._names, values, strict=False))
        key = (context.stream.operation_id, tuple(map(repr, values)) if self._failure.per_input else None)
        self._calls[key] += 1
        return Scope(arguments, self._calls[key])

    def hangs(self, scope: Scope) -> bool:
        return self._failure.hangs and self._failure.strikes(scope)

    def outcome(self, scope: Scope) -> Any:
        if self._failure.strikes(scope):
            raise RuntimeError(self._failure.text(scope.invocation))
        return _shaped(self._behaviour.value(scope), self._returns)

    def local(self, *values: Any) -> Any:
        return _shaped(self._behaviour.value(Scope(dict(zip(self._names, values, strict=False)))), self._returns)


def _signature(words: FunctionWords) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(name, kind, default=None if "optional" in type_ else inspect.Parameter.empty)
        for name, type_ in words.arguments
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY)
    return inspect.Signature([*parameters, context])


def _annotation(text: str) -> Any:
    """Returns the annotation of a type, or of one of several: "INT or STRING"."""
    members = []
    for part in re.split(r"\s+or\s+", text):
        type_ = parse_type(part)
        members.append(Annotated[_PYTHON.get(type_.kind, object), arrow_type(type_.ddl)])
    return members[0] if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - made at run time
