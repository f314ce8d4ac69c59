"""The examples of Spark's own functions have the same rows beside a remote aggregate, under each setting of the parser.

`spark.sql` runs them with Spark's sum and `remote.sql` with a remote one. A few drawn examples run, all of them with
ALL_EXAMPLES=1.
"""

import os
import random
import re

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_client import PlanError, connect
from tests.conftest import serving
from tests.spark.sql.test_as_spark import MySum
from tests.spark.sql.test_tpcds import QUERIES, TABLES, make_views
from tests.spark.sql.text.test_parser_settings import setting
from udf_server.aggregate.declaration import declare_aggregate

SEED = random.randrange(1 << 31) if os.environ.get("REMOTE_UDF_SEED") == "random" else 40
DRAWN = None if os.environ.get("ALL_EXAMPLES") else 60

PARTS = 1 if DRAWN else 12
"""The tests of a setting. Whatever its time limit, a process ends after 16 minutes in one test."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(240 if DRAWN else 900)]

SETTINGS = {
    "by default": {},
    "escaped": {"spark.sql.parser.escapedStringLiterals": "true"},
    "quoted names": {"spark.sql.ansi.doubleQuotedIdentifiers": "true"},
    "left to right": {"spark.sql.legacy.setopsPrecedence.enabled": "true"},
    "consecutive": {"spark.sql.legacy.consecutiveStringLiterals.enabled": "true"},
    "regular expressions": {"spark.sql.parser.quotedRegexColumnNames": "true"},
    "reserved words": {"spark.sql.ansi.enforceReservedKeywords": "true"},
    "without ANSI": {"spark.sql.ansi.enabled": "false"},
}
REFUSED = "makes several columns: name them"
"""The message of what is refused here, and not by Spark."""
TOGETHER = 12
"""Examples without FROM in one query: it has the columns of all of them."""


@pytest.fixture(scope="module")
def remote(spark):
    with serving(declare_aggregate(MySum)) as server:
        yield connect(spark, server.target)


@pytest.fixture(scope="module")
def examples(spark):
    """The examples to run, by the names of the settings."""
    names = sorted(row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect())
    draw = random.Random(SEED)
    draw.shuffle(names)
    texts: list[str] = []
    for name in names:
        if DRAWN is None or len(texts) < 2 * DRAWN:
            described = "\n".join(row[0] for row in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect())
            texts += re.findall(r"^\s*> (SELECT .*?);\s*$", described, flags=re.MULTILINE | re.DOTALL | re.IGNORECASE)
    texts = list(dict.fromkeys(texts))
    if DRAWN is None:
        return dict.fromkeys(SETTINGS, texts)
    few = draw.sample(texts, DRAWN)
    return {name: few[number :: len(SETTINGS)] for number, name in enumerate(SETTINGS)}


FROM = re.compile(r"\bFROM\b[^()]*$|\bFROM VALUES|\*", re.IGNORECASE)


def outcome(session, query):
    """The columns and rows of a query, or None if it fails."""
    try:
        frame = session.sql(query)
        return frame.columns, sorted(map(repr, frame.collect()))
    except (PySparkException, Py4JError):
        return None


def queries_of(spark, texts):
    """Queries with the examples and a sum. Those without FROM are the columns of few queries."""
    own = {text: outcome(spark, text) for text in texts}
    # Others fail in Spark, or depend on the time or on chance.
    texts = [text for text in texts if own[text] is not None and outcome(spark, text) == own[text]]
    plain = [text[len("SELECT") :].strip() for text in texts if not FROM.search(text)]
    for begin in range(0, len(plain), TOGETHER):
        items = plain[begin : begin + TOGETHER]
        query = ", ".join(["SELECT SUM(1L) AS one", *items])
        alone = [f"SELECT SUM(1L) AS one, {item}" for item in items]
        yield from alone if outcome(spark, query) is None else [query]
    for text in texts:
        if FROM.search(text):
            yield f"SELECT SUM(1L) AS one, {text[len('SELECT') :].strip()}"
            yield f"SELECT * FROM (SELECT SUM(1L) AS one), ({text}\n)"


def difference(remote, query):
    """What a query becomes by `remote.sql`, if that is not what Spark returns; None for what Spark refuses."""
    expected = outcome(remote.spark, query)
    if expected is None:
        return None
    try:
        frame = remote.sql(query.replace("SUM(1L)", "my_sum(1L)"))
        found = frame.columns, sorted(map(repr, frame.collect()))
    except PlanError as error:
        found = None if REFUSED in str(error) else str(error)
    except Exception as error:  # Any exception: each is a difference
        found = f"{type(error).__name__}: {error}"[:600]
    return found if found not in (None, expected) else None


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", SETTINGS)
def test_the_examples_of_functions_have_sparks_rows(remote, examples, name, part):
    print(f"seed {SEED}")
    with setting(remote.spark, SETTINGS[name]):
        found = {query: difference(remote, query) for query in queries_of(remote.spark, examples[name][part::PARTS])}
    assert found
    assert {query: what for query, what in found.items() if what} == {}


SUM = re.compile(r"\bsum\(", re.IGNORECASE)


@pytest.fixture
def queries(spark):
    """Queries in the style of TPC-DS, over tables whose amounts are whole numbers, as the remote sum takes them."""
    whole = {name: (rows, columns.replace("decimal(7, 2)", "bigint")) for name, (rows, columns) in TABLES.items()}
    make_views(spark, whole)
    texts = [text for text in QUERIES.values() if SUM.search(text)]
    random.Random(SEED).shuffle(texts)
    yield (
        dict.fromkeys(SETTINGS, texts)
        if DRAWN is None
        else dict(zip(SETTINGS, [[text] for text in texts], strict=False))
    )
    for name in TABLES:
        spark.catalog.dropTempView(name)


@pytest.mark.parametrize("name", SETTINGS)
def test_queries_of_the_benchmarks_kind_have_sparks_rows(remote, queries, name):
    print(f"seed {SEED}")
    with setting(remote.spark, SETTINGS[name]):
        for text in queries[name]:
            found = outcome(remote, SUM.sub("my_sum(", text))
            assert str(found).replace("my_sum(", "sum(") == str(outcome(remote.spark, text)), text
