"""Binding: the function that a case means, from the user's file by name, or made from the words of the sample."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sqlglot.errors import SqlglotError

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.embedded import EmbeddedServer
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.given import Candidate, Given
from tests.conformance.given_plugin import FILE_VARIABLE, OFFER_VARIABLE
from tests.conformance.servers import Servers
from tests.conformance.spark_sql import calls, parse

__all__ = ["Binder", "Bound", "FileBinder", "FunctionMissing", "called_in_from", "called_names", "is_process"]

_CALLED = re.compile(r"(?:\b([A-Za-z_]\w*)|`([^`]+)`)\s*\(")
_AGGREGATE = re.compile(r"aggregate|udaf|udagg", re.IGNORECASE)
_AS_TABLE = re.compile(
    r"\b(?:FROM|JOIN|LATERAL)\s+(?:LATERAL\s+)?(?:TABLE\s*\(\s*)?(?:`([^`]+)`|([A-Za-z_]\w*))\s*\(", re.IGNORECASE
)
_NO_FUNCTIONS = ("tumble", "hop", "cumulate", "session", "table", "values", "unnest", "lateral")
_CLAUSES = ("join", "union", "except", "intersect", "having", "limit", "set", "begin", "if")
"""Words of SQL that may precede a parenthesis, besides those that `Environment.bind` knows."""
_PLUGIN = "tests.conformance.given_plugin"


class FunctionMissing(Exception):
    """A case needs a function that is not given; the message names it and says why."""


@dataclass(frozen=True)
class Bound:
    """A function in words and the function bound to it. `refused` is the error that its declaration raised.

    `origin` is for the report. `own_message` is part of every error that it raises, "" if that is not known.
    """

    words: FunctionWords
    function: Any
    spec: FunctionSpec | None
    origin: str
    refused: Exception | None = None
    own_message: str = ""

    @property
    def key(self) -> str:
        assert self.spec is not None
        return self.spec.key

    @property
    def name(self) -> str:
        return self.spec.name if self.spec is not None else self.words.name


class Binder(Protocol):
    """Binds the functions of cases, and runs a server with them."""

    def bind(self, case: Case, known: Sequence[str]) -> list[Bound]:
        """Returns the functions of a case without built-in ones; Spark has `known` names. Raises FunctionMissing."""

    def server(self, case: Case, bound: Sequence[Bound], fresh: object) -> EmbeddedServer:
        """Returns a server with these functions, a new one for every value of `fresh` if they may keep state."""


class FileBinder:
    """Binds functions by the names of a user's file."""

    def __init__(self, path: Path, servers: Servers) -> None:
        self._given = Given(path)
        self._servers = servers
        self._path = path
        self.module = self._given.module

    def bind(self, case: Case, known: Sequence[str]) -> list[Bound]:
        where = (case.id, case.file, case.file.removesuffix(".json"))
        ours = [words for words in case.functions if not words.builtin]
        bound = [each for place, words in enumerate(ours) for each in self._bound(case, words, place, where)]
        names = {each.words.name.lower() for each in bound} | {words.name.lower() for words in case.functions}
        # A process table function may have another name in the query.
        if any(is_process(words) for words in case.functions):
            names |= {name.lower() for name in called_in_from(" ".join((*case.setup, case.query)))}
        free = [name for name in called_names(case) if name.lower() not in names and name.lower() not in known]
        found = self._given.called(free, where)
        missing = [name for name in free if name not in dict(found)]
        if missing and not case.functions:
            raise FunctionMissing(f"{missing[0]}: no function of that name in {self._path.name}")
        return bound + [self._made(FunctionWords(name, "", (), "", ""), each) for name, each in found]

    def server(self, case: Case, bound: Sequence[Bound], fresh: object) -> EmbeddedServer:
        offer = [each.function.reference for each in bound if each.refused is None]
        settings = {FILE_VARIABLE: str(self._path.resolve()), OFFER_VARIABLE: json.dumps(offer)}
        scalar = any(each.spec is not None and str(each.spec.kind) == "scalar" for each in bound)
        return self._servers.server(_PLUGIN, settings, (case.id, fresh) if scalar else None)

    def _bound(self, case: Case, words: FunctionWords, place: int, where: Sequence[str]) -> list[Bound]:
        """Returns one function; or one for every number of arguments with which the query calls the name."""
        arguments = [name for name, _ in words.arguments]
        if is_process(words):
            # A query may use its own name for the function.
            called = called_in_from(" ".join((*case.setup, case.query)))
            names = [words.name, *called[place : place + 1]]
            tried = [self._given.find(name, where, arguments, kind=FunctionKind.PROCESS) for name in names]
            found = next((each for each in tried if isinstance(each, Candidate)), tried[0])
            if isinstance(found, str):
                raise FunctionMissing(f"{words.name}: {found}")
            return [self._made(words, found)]
        bound = []
        for count in sorted(_counts(case, words.name)) or [len(arguments)]:
            kind = FunctionKind.AGGREGATE if _AGGREGATE.search(words.kind) else FunctionKind.SCALAR
            found = self._given.find(words.name, where, arguments, [count], kind)
            if isinstance(found, str) and case.error is not None:
                # The query may be refused for the number of its arguments.
                found = self._given.find(words.name, where, arguments, (), kind)
            if isinstance(found, str):
                raise FunctionMissing(f"{words.name}: {found}")
            told = words.arguments if count == len(arguments) else (("", ""),) * count
            bound.append(self._made(replace(words, arguments=told), found))
        return bound

    def _made(self, words: FunctionWords, found: Candidate) -> Bound:
        origin = f"{found.python_name or found.name} of {self._path.name}"
        return Bound(words, found, found.spec, origin, found.refused, f"{found.name}@" if found.spec else "")


def is_process(words: FunctionWords) -> bool:
    """Whether the words describe a process table function: tables as arguments, state, or timers."""
    return (
        "timers" in words.raw
        or "state" in words.raw
        or any("table" in str(argument.get("kind", "")) for argument in words.raw.get("arguments") or ())
    )


def _counts(case: Case, name: str) -> set[int]:
    """Returns the numbers of arguments with which the query calls a function; empty if it cannot be parsed."""
    try:
        trees = [parse(text) for text in (*case.setup, case.query)]
    except SqlglotError:
        return set()
    return {len(call.expressions) for tree in trees for call in calls(tree) if call.name.lower() == name.lower()}


def called_in_from(query: str) -> list[str]:
    """Returns the names that are called as tables, without window functions."""
    called = [next(filter(None, match)) for match in _AS_TABLE.findall(query)]
    return [name for name in dict.fromkeys(called) if name.lower() not in _NO_FUNCTIONS]


def called_names(case: Case) -> list[str]:
    """Returns the names that the query of a case calls, in order."""
    text = re.sub(r"'[^']*'", "''", " ".join((*case.setup, case.query)))
    return list(dict.fromkeys(one or other for one, other in _CALLED.findall(text) if one.lower() not in _CLAUSES))
