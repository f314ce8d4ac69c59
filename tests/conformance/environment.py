"""Environment: what a run gives every case: a Spark session, the servers and the functions they have."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from remote_udf.functions import FunctionSpec
from spark_client import connect
from spark_client.embedded import EmbeddedServer
from tests.conformance.cases import Case, CaseFile, FunctionWords
from tests.conformance.functions.building import Built, built_functions, overloads
from tests.conformance.matching import given_function
from tests.conformance.servers import Servers

__all__ = ["Chosen", "Environment", "FunctionMissing"]

QUERY_SECONDS = 100.0
"""A query that takes longer is interrupted."""
_STATEFUL = ("invocation", "counter", "first call", "attempt", "times", "once", "twice", "so far")


class FunctionMissing(Exception):
    """A case needs a function that neither the words nor the user's file give; the message names it and says why."""


@dataclass(frozen=True)
class Chosen:
    """The function that stands for one in words. `built` is None for one of the user's file."""

    words: FunctionWords
    server: EmbeddedServer
    spec: FunctionSpec
    built: Built | None = None

    @property
    def key(self) -> str:
        return self.spec.key


class Environment:
    """One Spark session, and the servers, for every case of a folder."""

    def __init__(self, spark: SparkSession, folder: Path, files: Sequence[CaseFile], functions: Path | None) -> None:
        self.spark = spark
        self.servers = Servers(folder, functions)
        cases = [case for file in files for case in file.cases]
        built, self._why_not = built_functions(cases)
        self._built = {each.words: each for each in built}
        self._words = list({words: None for case in cases for words in case.functions})

    def choose(self, case: Case) -> list[Chosen]:
        """The functions of a case, built-in ones left out. Raises FunctionMissing."""
        return [chosen for words in case.functions if not words.builtin for chosen in self._choose(words, case)]

    @contextlib.contextmanager
    def settings(self, values: Mapping[str, str]) -> Iterator[None]:
        """Session settings for a while."""
        old = {name: self.spark.conf.get(name, None) for name in values}
        try:
            for name, value in values.items():
                self.spark.conf.set(name, value)
            yield
        finally:
            for name, value in old.items():
                if value is None:
                    self.spark.conf.unset(name)
                else:
                    self.spark.conf.set(name, value)

    def register(self, chosen: Sequence[Chosen]) -> None:
        """Makes the functions known to SQL as "name@version", planned anew, so that their calls are counted anew."""
        for server in {each.server.target: each.server for each in chosen}.values():
            keys = {each.key for each in chosen if each.server is server}
            connect(self.spark, server.target).register(*sorted(keys))

    def collect(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query of Spark's, as `rows`."""
        return self.rows(lambda: self.spark.sql(sql))

    def rows(self, query: Callable[[], DataFrame]) -> list[tuple[Any, ...]]:
        """The rows of a DataFrame. Whatever is raised passes through, and an interruption after QUERY_SECONDS."""
        tag = f"conformance-{threading.get_ident()}"
        self.spark.addTag(tag)
        timer = threading.Timer(QUERY_SECONDS, self.spark.interruptTag, [tag])
        timer.start()
        try:
            return [tuple(row) for row in query().collect()]
        finally:
            timer.cancel()
            self.spark.removeTag(tag)

    def forget_views(self, names: Iterable[str]) -> None:
        """Drops temporary views."""
        for name in names:
            self.spark.catalog.dropTempView(name)

    def close(self) -> None:
        """Ends the servers; the Spark session is the caller's."""
        self.servers.close()

    def _choose(self, words: FunctionWords, case: Case) -> list[Chosen]:
        server = self.servers.given()
        if server is not None:
            specs = connect(self.spark, server.target).functions()
            spec = given_function(words, specs, self._words)
            if spec is not None:
                if self._keeps_state(words, case):
                    server = self.servers.given(fresh=True)
                    assert server is not None
                return [Chosen(words, server, spec)]
        variants = overloads(words)
        missing = [variant for variant in variants if variant not in self._built]
        if missing:
            raise FunctionMissing(f"{words.name}: {self._why_not.get(missing[0], 'no function of its kind is made')}")
        built = [self._built[variant] for variant in variants]
        return [Chosen(each.words, self.servers.built(), each.function.spec, each) for each in built]

    def _keeps_state(self, words: FunctionWords, case: Case) -> bool:
        """Its calls may depend on those before, so a case must find it unused."""
        text = f"{words.behaviour} {words.failure}".lower()
        return bool(words.failure) or case.expected.invocations is not None or any(word in text for word in _STATEFUL)
