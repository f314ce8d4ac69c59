"""Binds the functions of the shared sample, which are made from words. It is never used with a user's file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from remote_udf.errors import RemoteUdfError
from spark_client.embedded import EmbeddedServer
from tests.conformance.binding import Bound, FunctionMissing, called_names, is_process
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.functions.building import built_functions, overloads
from tests.conformance.functions.plugin import CASES_VARIABLE
from tests.conformance.functions.process_tables import NotBuilt, build_process_table, process_name
from tests.conformance.functions.window_functions import ConcatDistinctAgg
from tests.conformance.servers import Servers
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.process.declaration import declare_process

__all__ = ["SampleBinder"]

PLUGIN = "tests.conformance.functions.plugin"
ORIGIN = "made from words"


class SampleBinder:
    """One server has all of them."""

    def __init__(self, folder: Path, cases: Iterable[Case], servers: Servers) -> None:
        self._folder = folder
        self._servers = servers
        built, self._why_not = built_functions(list(cases))
        self._built = {each.words: each for each in built}
        aggregate = declare_aggregate(ConcatDistinctAgg())
        self._free = {aggregate.spec.name: aggregate}

    def bind(self, case: Case, known: Sequence[str]) -> list[Bound]:
        bound = []
        for position, words in enumerate(case.functions):
            if not words.builtin:
                bound += [self._process(case, position, words)] if is_process(words) else self._others(words)
        told = {words.name.lower() for words in case.functions}
        if not any(is_process(words) for words in case.functions):
            for name in called_names(case):
                if name.lower() in self._free and name.lower() not in told:
                    words = FunctionWords(name, "", (), "", "")
                    function = self._free[name.lower()]
                    bound.append(Bound(words, function, function.spec, ORIGIN))
        return bound

    def server(self, case: Case, bound: Sequence[Bound], fresh: object) -> EmbeddedServer:
        """Returns one server for all runs, since functions count per planned call; open calls are counted by server."""
        key = (case.id, fresh) if "max_open_calls" in case.expected else None
        return self._servers.server(PLUGIN, {CASES_VARIABLE: str(self._folder.resolve())}, key)

    def _others(self, words: FunctionWords) -> list[Bound]:
        variants = overloads(words)
        missing = [variant for variant in variants if variant not in self._built]
        if missing:
            raise FunctionMissing(f"{words.name}: {self._why_not.get(missing[0], 'no function of its kind is made')}")
        return [
            Bound(each.words, each, each.function.spec, ORIGIN, own_message=each.failure_text)
            for each in (self._built[variant] for variant in variants)
        ]

    def _process(self, case: Case, position: int, words: FunctionWords) -> Bound:
        output = case.config.get("output.changelog_mode")
        try:
            kind = build_process_table(words, process_name(case, position), output)
            return Bound(words, kind, declare_process(kind).spec, ORIGIN)
        except NotBuilt as error:
            raise FunctionMissing(str(error)) from error
        except (RemoteUdfError, ValueError, TypeError) as error:
            return Bound(words, None, None, ORIGIN, error)
