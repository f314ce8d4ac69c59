"""Functions in FROM and lookup joins, as SQL for Spark, without Spark."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import udf_server as udf
from remote_udf.functions import FunctionKind
from spark_client import PlanError
from spark_client.base.identifiers import Identifiers
from spark_client.sql.tables.lateral_calls import may_have_lateral_calls, with_lateral_calls
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import canonical


@udf.scalar(rows=True, returns="a int, b string")
def parts(x: str) -> list:
    return []


@udf.scalar(returns="struct<name:string>")
def people(id: int, region: str = "eu") -> dict:
    return {}


@udf.scalar
def plain(x: int) -> int:
    return x


@dataclass
class Functions:
    """The functions of a session, by name."""

    specs: dict = field(default_factory=lambda: {each.spec.name: each.spec for each in (parts, people, plain)})

    def kind(self, name):
        return FunctionKind.SCALAR if name.lower() in self.specs else None

    def is_remote_scalar(self, name):
        return self.kind(name) is not None

    def spec(self, name):
        return self.specs[name.lower()]

    def lateral(self, name, options=None):
        return "_".join([name.lower(), *(f"{option}={value}" for option, value in sorted((options or {}).items()))])


class Scope:
    """A scope without a session, in whose catalog there is the table `plain`."""

    functions = Functions()
    identifiers = Identifiers(case_sensitive=False)
    key = identifiers.key
    spark = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda name: name == "`plain`"))

    def __init__(self):
        self.stages = []
        self.is_planned = False

    def hidden(self, what):
        return what


def rewritten(text):
    return canonical(with_lateral_calls(Scope(), Text(text, None, {}).tree))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("t, LATERAL TABLE(parts(t.x)) AS r(c, d)", "t CROSS JOIN LATERAL INLINE(`parts`(t.x)) AS r(c, d)"),
        ("t JOIN LATERAL parts(x) ON TRUE", "t CROSS JOIN LATERAL INLINE(`parts`(x)) AS `parts`"),
        ("t LEFT JOIN LATERAL parts(x) AS r", "t CROSS JOIN LATERAL INLINE_OUTER(`parts`(x)) AS r"),
        (
            "t LEFT JOIN LATERAL parts(x) AS r(c, d) ON R.C > t.y AND t.z",
            "t CROSS JOIN LATERAL INLINE_OUTER(FILTER(`parts`(x), row -> (row.`a` > t.y) AND (t.z))) "
            "AS r(c, d)",
        ),
        ("t LATERAL VIEW OUTER parts(x) r AS c, d", "t LATERAL VIEW OUTER INLINE(`parts`(x)) r AS c, d"),
        ("parts('x')", "INLINE(`parts`('x')) AS `parts`"),
        ("t RIGHT JOIN LATERAL parts(x) AS r ON TRUE", "t RIGHT JOIN LATERAL INLINE(`parts`(x)) AS r ON TRUE"),
        (
            "t JOIN people FOR SYSTEM_TIME AS OF t.at AS p ON t.k = p.id",
            "t CROSS JOIN LATERAL INLINE(TRANSFORM(FILTER(ARRAY_COMPACT(ARRAY(`people`(t.k))), "
            "row -> (NOT (t.k) IS NULL)), row -> NAMED_STRUCT('id', t.k, 'name', row.`name`))) AS p",
        ),
        ("plain FOR SYSTEM_TIME AS OF '2026-01-01' AS p", "plain TIMESTAMP AS OF '2026-01-01' AS p"),
        ("t, LATERAL inline(parts(x)) AS r", "t, LATERAL inline(parts(x)) AS r"),
    ],
)  # fmt: skip
def test_a_join_with_rows_becomes_one_of_spark(source, expected):
    assert rewritten(f"SELECT * FROM {source}").lower() == f"select * from {expected.lower()}"


def test_a_hint_is_of_the_joins_of_its_select_and_leaves_no_trace():
    join = "t JOIN people FOR SYSTEM_TIME AS OF t.at AS p ON t.k = p.id"
    hint = "LOOKUP('table'='P', 'capacity'='3', 'max-attempts'='2'), BROADCAST(t)"
    text = rewritten(f"SELECT /*+ {hint} */ p.name FROM {join} WHERE EXISTS (SELECT 1 FROM {join})")
    assert text.startswith("SELECT /*+ BROADCAST(t) */ ")
    # As in Flink, 2 attempts follow the first call. The other SELECT has no hint.
    assert text.count("people_buffer-capacity=3_max-attempts=3`(t.k)") == text.count("`people`(t.k)") == 1


def test_a_common_table_expression_comes_first():
    text = "WITH people AS (SELECT 1 AS id) SELECT * FROM t JOIN people TIMESTAMP AS OF {} AS p ON t.k = p.id"
    assert rewritten(text.format("'2026-01-01'")) == text.format("'2026-01-01'")
    # Spark has no times of rows, so the function is meant.
    with pytest.raises(PlanError, match=r"WITH defines a table or view of this name.*; write `people@1`"):
        rewritten(text.format("t.at"))


@pytest.mark.parametrize(
    ("text", "may"),
    [
        ("SELECT parts(x), plain(x) FROM t", False),
        ("SELECT y, parts(x) FROM t", True),
        ("SELECT * FROM t, LATERAL parts(x)", True),
        ("SELECT * FROM TABLE(plain(3))", True),
        ("SELECT * FROM t JOIN people FOR SYSTEM_TIME AS OF x AS p ON p.id = t.x", True),
        ("SELECT * FROM t JOIN people TIMESTAMP AS OF x", True),
        ("SELECT * FROM t TIMESTAMP AS OF '2026-01-01'", False),
        ("SELECT * FROM people", False),
        ("SYSTEM_TIME AS OF", False),
        ("SELECT 'parts' (x)", False),
    ],
)
def test_only_texts_that_call_a_function_as_a_table_are_parsed(text, may):
    assert may_have_lateral_calls(Text(text, None, {}).tokens, Functions()) is may


def test_an_error_has_its_position():
    with pytest.raises(PlanError) as caught:
        rewritten("SELECT *\nFROM t JOIN people FOR SYSTEM_TIME AS OF t.at AS p ON t.k = p.region")
    assert str(caught.value).startswith(
        "line 2, column 13: lookup join with people: ON has no equality for parameter 'id'"
    )
