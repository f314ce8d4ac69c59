"""FROM_CHANGELOG and TO_CHANGELOG of udf-process in SQL: the examples of Flink's documentation, with tables of ours."""

import pytest

from spark_client import PlanError, UnknownFunction, connect
from spark_client.base.changelogs import mode_of
from tests.spark.process_streams import run, stream_of, write

CAPTURED = [
    (1, "INSERT", "Alice"), (2, "INSERT", "Bob"), (1, "UPDATE_BEFORE", "Alice"), (1, "UPDATE_AFTER", "Alice2"),
    (2, "DELETE", "Bob"),
]  # fmt: skip
KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
UPSERT = "MAP['c, r', 'INSERT', 'u', 'UPDATE_AFTER', 'd', 'DELETE']"


@pytest.fixture(scope="module")
def shipped(spark):
    session = connect(spark)
    spark.createDataFrame(CAPTURED, "id int, op string, name string").coalesce(1).createOrReplaceTempView("captured")
    upserts = [(1, "c", "Alice"), (2, "r", "Bob"), (1, "u", "Alice2"), (None, "x", "?"), (2, "d", None)]
    spark.createDataFrame(upserts, "id int, op string, name string").coalesce(1).createOrReplaceTempView("upserts")
    yield session
    for name in ("captured", "upserts"):
        spark.catalog.dropTempView(name)


def rows(frame):
    return [tuple(row) for row in frame.collect()]


def test_operations_become_kinds_and_come_back(shipped):
    changes = "FROM_CHANGELOG(input => TABLE captured, op => DESCRIPTOR(op))"
    assert rows(shipped.sql(f"SELECT * FROM {changes}")) == [(id_, name, KINDS[op]) for id_, op, name in CAPTURED]
    back = shipped.sql(
        f"SELECT deleted, id FROM TO_CHANGELOG((SELECT * FROM {changes}), DESCRIPTOR(deleted), "
        "MAP['INSERT, UPDATE_AFTER', 'false', 'DELETE', 'true'])"
    )
    assert rows(back) == [("false", 1), ("false", 2), ("false", 1), ("true", 2)]


def test_a_mapping_without_rows_before_updates_makes_an_upsert_changelog(shipped):
    arguments = f"op_mapping => {UPSERT}, invalid_op_handling => 'LOG', state_ttl => INTERVAL '1' DAY"
    changes = f"FROM_CHANGELOG(input => TABLE upserts PARTITION BY id, {arguments})"
    found = shipped.sql(f"SELECT * FROM {changes}")
    mode, key = mode_of(found)
    assert (mode.kinds, key) == (("+I", "+U", "-D"), ("id",))
    with pytest.raises(PlanError, match="without the rows that its updates and deletes replace"):
        shipped.group_by(found, "name").agg(shipped.function("exact_sum")("id"))
    # TO_CHANGELOG completes what an upsert changelog lacks.
    full = shipped.sql(f"SELECT id, op, name FROM TO_CHANGELOG(TABLE (SELECT * FROM {changes})) ORDER BY id, op")
    assert rows(full) == [
        (1, "INSERT", "Alice"), (1, "UPDATE_AFTER", "Alice2"), (1, "UPDATE_BEFORE", "Alice"), (2, "DELETE", "Bob"),
        (2, "INSERT", "Bob"),
    ]  # fmt: skip


@pytest.mark.connect
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("op => DESCRIPTOR(operation)", "Invalid column 'operation' for argument 'op': table 'input' has id, op, name"),
        ("op_mapping => MAP['c', 'UPSERT']", "Unknown change operation: 'UPSERT' in op_mapping; there are INSERT, "),
        (f"op_mapping => {UPSERT}", "UPDATE_AFTER without UPDATE_BEFORE.*name the key with PARTITION BY"),
        ("after => DESCRIPTOR(name)", "column 'name' for argument 'after' is string, not a struct"),
        ("on_error => 'SKIP'", r"has no argument 'on_error': from_changelog\(input table, op "),
    ],
)
def test_a_wrong_argument_is_named_before_anything_runs(shipped, arguments, why):
    with pytest.raises(PlanError, match=f"line 1, column 15: .*{why}"):
        shipped.sql(f"SELECT * FROM FROM_CHANGELOG(input => TABLE captured, {arguments})")


def test_an_operation_that_is_not_in_the_mapping_fails_the_job(shipped):
    found = shipped.sql("SELECT * FROM FROM_CHANGELOG(input => TABLE captured, op_mapping => MAP['c, r', 'INSERT'])")
    with pytest.raises(Exception, match=r"invalid op code 'INSERT' in column 'op'. Defined are: c, r"):
        found.collect()


def test_a_server_without_the_functions_names_their_plugin(spark):
    with pytest.raises(UnknownFunction, match=r"no function 'FROM_CHANGELOG' .*; install the plugin udf-process"):
        connect(spark, "local:udf_geo").sql("SELECT * FROM FROM_CHANGELOG(input => TABLE t)")


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("rocksdb")
def test_a_stream_goes_on_after_a_restart(shipped, spark, source, tmp_path):
    write(source, "a", [("+x", 1, 1), ("+y", 2, 2)])
    captured = stream_of(spark, source).selectExpr("substr(k, 2) AS id", "substr(k, 1, 1) AS op", "v")
    captured.createOrReplaceTempView("captured_stream")

    def changes():
        mapping = "op_mapping => MAP['+', 'INSERT', '~', 'UPDATE_AFTER', '-', 'DELETE']"
        table = "input => TABLE captured_stream PARTITION BY id"
        return shipped.sql(f"SELECT * FROM FROM_CHANGELOG({table}, {mapping}, uid => 'cdc')")

    assert sorted(run(changes(), tmp_path)) == [("x", 1, "+I"), ("y", 2, "+I")]
    write(source, "b", [("~x", 3, 3), ("-y", 2, 4)])
    found = sorted(run(changes(), tmp_path))
    assert found == [("x", 1, "+I"), ("x", 3, "+U"), ("y", 2, "+I"), ("y", 2, "-D")]


def test_without_keys_a_stream_needs_no_state_store(shipped, spark, source, tmp_path):
    write(source, "a", [("+x", 1, 1), ("-x", 1, 2)])
    captured = stream_of(spark, source).selectExpr("substr(k, 2) AS id", "substr(k, 1, 1) AS op", "v")
    captured.createOrReplaceTempView("captured_stream")
    changes = "FROM_CHANGELOG(input => TABLE captured_stream, op_mapping => MAP['+', 'INSERT', '-', 'DELETE'])"
    found = run(shipped.sql(f"SELECT * FROM TO_CHANGELOG(input => TABLE (SELECT * FROM {changes}))"), tmp_path)
    assert sorted(found) == [("DELETE", "x", 1), ("INSERT", "x", 1)]
