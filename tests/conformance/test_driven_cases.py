"""Queries whose calls are driven row by row, with the watermarks of the case, as the calls of a stream would be."""

import json

import pytest

from tests.conformance.reading import load_folder
from tests.conformance.runner import prepared, run_case

FUNCTIONS = """
import datetime
from typing import Annotated
import udf_server as udf

class Watermarks(udf.ProcessTableFunction):
    returns = "seen bigint"
    def eval(self, ctx: udf.ProcessContext, step: int, rows: Annotated[
        udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE, udf.ArgumentTrait.REQUIRE_ON_TIME]):
        yield (step * (ctx.time_context(int).current_watermark() or 0),)

class Scalars(udf.ProcessTableFunction):
    returns = "seen struct<seconds: bigint, b: string, columns: array<string>>"
    def eval(self, rows: Annotated[udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE], gap: datetime.timedelta,
             names: dict[str, str], columns: Annotated[list[str], "array<string>"]):
        yield ({"seconds": gap.seconds, "b": names["b"], "columns": columns},)

class Lowest(udf.ProcessTableFunction):
    returns = "seen bigint"
    def eval(self, ctx: udf.ProcessContext, a: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
             b: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]):
        yield (ctx.time_context(int).current_watermark() or 0,)

class KindsSET(udf.ProcessTableFunction):
    returns = "seen string, kind string, n bigint"
    def eval(self, ctx: udf.ProcessContext, rows: Annotated[
        udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE, udf.ArgumentTrait.SUPPORT_UPDATES]):
        yield (rows.k, str(rows.kind), rows.n)

class KindsROW(udf.ProcessTableFunction):
    returns = "seen string, kind string, n bigint"
    def eval(self, ctx: udf.ProcessContext, rows: Annotated[
        udf.Row, udf.ArgumentTrait.ROW_SEMANTIC_TABLE, udf.ArgumentTrait.SUPPORT_UPDATES]):
        yield (rows.k, str(rows.kind), rows.n)

class Counts(udf.ProcessTableFunction):
    returns = "n bigint"
    changelog_mode = udf.ChangelogMode.of("+I", "+U", "-D")
    def eval(self, ctx: udf.ProcessContext, seen: udf.ValueView[int], rows: Annotated[
        udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE]):
        seen.value = (seen.value or 0) + 1
        yield udf.Row(seen.value, kind="+U" if seen.value > 1 else "+I")
"""
ARGUMENTS = [{"name": "step", "kind": "scalar"}, {"name": "rows", "kind": "set-semantic table"}]
KINDS = {"behaviour": "", "arguments": [{"name": "rows", "kind": "table"}], "state": []}
COLUMNS = [{"name": "k", "type": "STRING"}, {"name": "ts", "type": "TIMESTAMP_LTZ(3)"}]
ROWS = [["a", f"2025-01-01T00:00:{second}Z"] for second in (10, 20, 30)]
START = 1_735_689_600_000
"""The first of January 2025 in milliseconds."""


@pytest.fixture(scope="module")
def driven(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("driven")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "cases").mkdir()
    with prepared(spark.newSession(), folder / "cases", folder / "functions.py", files=[]) as environment:

        def run(*rows, others=None, **item):
            table = {"columns": COLUMNS, "rows": ROWS, "watermark": "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"}
            told = {
                "id": "it",
                "function": {"name": "Watermarks", "behaviour": "", "arguments": ARGUMENTS, "state": []},
                "tables": {"t": table, **(others or {})},
                "query": "SELECT k, seen FROM Watermarks(step => 1, rows => TABLE t PARTITION BY k, "
                "on_time => DESCRIPTOR(ts))",
                "expected": {"rows": [["a", row] for row in rows], "ordered": True},
                **item,
            }
            (folder / "cases" / "some.json").write_text(json.dumps([told]))
            (case,) = load_folder(folder / "cases")[0].cases
            return run_case(case, environment)

        yield run


@pytest.mark.long
@pytest.mark.slow
def test_each_row_of_a_driven_call_sees_the_watermark_of_the_rows_before_it(driven):
    entry = driven(0, START + 9_000, START + 19_000)
    assert entry.status == "passed", entry.reason
    assert driven(0, START + 9_000, START + 20_000).status == "failed"


@pytest.mark.long
def test_a_case_may_emit_no_watermark(driven):
    entry = driven(0, 0, 0, config={"watermark_emission": "none before the end of the input"})
    assert entry.status == "passed", entry.reason
    assert driven(0, 0, 0).status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restore", "seen"),
    [
        ("run before_restore, take a savepoint, run after_restore", [0, START + 9_000, 0]),
        ("a savepoint, in which watermarks are not kept", [0, START + 9_000, 0]),
        ("a savepoint; watermarks are restored with it", [0, START + 9_000, START + 19_000]),
    ],
)
def test_a_restart_begins_without_a_watermark_unless_the_case_says_otherwise(driven, restore, seen):
    phases = ("before_restore", "before_restore", "after_restore")
    rows = [{"values": row, "phase": phase} for row, phase in zip(ROWS, phases, strict=True)]
    table = {"columns": COLUMNS, "rows": rows, "watermark": "WATERMARK FOR ts AS ts - INTERVAL '1' SECOND"}
    function = {"name": "Watermarks", "behaviour": "emits the watermark", "arguments": ARGUMENTS, "state": []}
    entry = driven(*seen, others={"t": table}, function=function, config={"restore": restore})
    assert entry.status == "passed", entry.reason


@pytest.mark.slow
def test_a_late_row_of_one_of_several_tables_stays_late(driven):
    """The call sees the rows of t at 10, 20 and 30 seconds, then the late one, between those of u."""
    late = {"columns": COLUMNS, "watermark": "WATERMARK FOR ts AS ts"}
    ends = ["2025-01-01T00:00:40Z", "2025-01-01T00:00:05Z"]
    names = [{"name": name, "kind": "set-semantic table"} for name in "ab"]
    entry = driven(
        others={"u": {**late, "rows": [["a", ends[0]], ["a", ends[1]]]}},
        function={"name": "Lowest", "behaviour": "emits the watermark", "arguments": names, "state": []},
        query="SELECT seen FROM Lowest(a => TABLE t PARTITION BY k, b => TABLE u PARTITION BY k, "
        "on_time => DESCRIPTOR(ts))",
        expected={"rows": [[each] for each in (0, 0, 0, 0, START + 29_000)]},
    )
    assert entry.status in ("passed", "partly checked"), entry.reason


@pytest.mark.slow
@pytest.mark.parametrize(("watermark", "last"), [("WATERMARK FOR ts AS ts - INTERVAL '2' SECOND", 18), (None, 0)])
def test_each_table_has_its_own_watermark(driven, watermark, last):
    """The watermark of the call is the lowest one of its tables; a table without one holds the call back."""
    late = {"columns": COLUMNS, "rows": [["a", "2025-01-01T00:00:20Z"], ["a", "2025-01-01T00:00:40Z"]]}
    names = [{"name": name, "kind": "set-semantic table"} for name in "ab"]
    # By time: t 10, t 20, u 20, t 30, u 40.
    seen = [0, 0, 0, START + last * 1000 if last else 0, START + last * 1000 if last else 0]
    entry = driven(
        others={"u": {**late, "watermark": watermark}},
        function={"name": "Lowest", "behaviour": "emits the watermark", "arguments": names, "state": []},
        query="SELECT seen FROM Lowest(a => TABLE t PARTITION BY k, b => TABLE u PARTITION BY k, "
        "on_time => DESCRIPTOR(ts))",
        expected={"rows": [[each] for each in seen]},
    )
    assert entry.status in ("passed", "partly checked"), entry.reason


@pytest.mark.slow
@pytest.mark.parametrize("is_told", [False, True])
@pytest.mark.parametrize(("keys", "kinds"), [("k", ["+I", "+I", "+U"]), (None, ["+I", "+I", "-U", "+U"])])
def test_the_changes_of_a_view_go_into_a_function(driven, keys, kinds, is_told):
    """A function that is partitioned by the key of the view gets an upsert changelog; else, all changes.

    The case may also tell all changes, and the query in words.
    """
    rows = {"columns": [{"name": "k", "type": "STRING"}], "rows": [["a"], ["b"], ["a"]]}
    counts = {"+I": 1, "-U": 1, "+U": 2}
    changes = [
        {"kind": kind, "values": [k, counts[kind]]} for k, kind in zip("abaa", ("+I", "+I", "-U", "+U"), strict=True)
    ]
    told = {
        "columns": [*rows["columns"], {"name": "n", "type": "BIGINT"}],
        "rows": changes,
        "derived_from": "grouped by k",
    }
    names = ["a", "b", "a", "a"][: len(kinds)]
    trait = "SET_SEMANTIC_TABLE" if keys else "ROW_SEMANTIC_TABLE"
    entry = driven(
        others={"v": told} if is_told else {"r": rows, "v": {"view": "SELECT k, COUNT(*) AS n FROM r GROUP BY k"}},
        function={**KINDS, "name": f"Kinds{trait[:3]}"},
        query=f"SELECT seen, kind, n FROM Kinds{trait[:3]}(rows => TABLE v{' PARTITION BY k' if keys else ''})",
        expected={"rows": [[name, kind, counts[kind]] for name, kind in zip(names, kinds, strict=True)]},
    )
    assert entry.status == "passed", entry.reason


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["*", "k, n"])
@pytest.mark.parametrize(
    "expected",
    [
        {"final_rows": [["a", 2], ["b", 1]]},
        {"rows": [{"kind": kind, "values": row} for kind, *row in (("+I", "a", 1), ("+U", "a", 2), ("+I", "b", 1))]},
    ],
)
def test_the_changes_of_a_function_pass_a_projection_and_replace_rows_of_their_key(driven, columns, expected):
    rows = {"columns": [{"name": "k", "type": "STRING"}], "rows": [["a"], ["a"], ["b"]]}
    told = {"function": {**KINDS, "name": "Counts"}, "others": {"r": rows}}
    query = f"SELECT {columns} FROM Counts(rows => TABLE r PARTITION BY k)"
    entry = driven(**told, query=query, expected=expected)
    assert entry.status == "passed", entry.reason
    assert driven(**told, query=query, expected={"final_rows": [["a", 1], ["b", 1]]}).status == "failed"


@pytest.mark.slow
def test_a_view_calls_the_function_by_the_name_that_the_case_gives_it(driven):
    rows = {"columns": [{"name": "k", "type": "STRING"}, {"name": "n", "type": "BIGINT"}], "rows": [["a", 1]]}
    entry = driven(
        others={"r": rows, "v": {"view": "SELECT * FROM f(rows => TABLE r PARTITION BY k)"}},
        function={**KINDS, "name": "KindsSET"}, query="SELECT * FROM v", expected={"rows": [["a", "a", "+I", 1]]},
    )  # fmt: skip
    assert entry.status == "passed", entry.reason


@pytest.mark.slow
def test_a_script_passes_any_scalar_argument(driven):
    entry = driven(
        function={**KINDS, "name": "Scalars"},
        query="SELECT * FROM Scalars(rows => TABLE t, gap => INTERVAL '2' MINUTE, names => MAP['b', 'c'], "
        "columns => DESCRIPTOR(k, `ts`))",
        steps=[{"op": "row", "table": "t", "values": ROWS[0]}], expected={"rows": [[[120, "c", ["k", "ts"]]]]},
    )  # fmt: skip
    assert entry.status == "passed", entry.reason
