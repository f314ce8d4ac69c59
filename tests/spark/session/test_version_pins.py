"""A restarted streaming query keeps the versions with which its checkpoint began."""

import json

import pytest

import udf_server as udf
from spark_client import connect
from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.connecting import pinned
from spark_client.functions.directory import Functions
from tests.versions import feels_1, feels_2


@udf.scalar
async def later(x: int) -> int:
    return x


def values(spark, remote, source, checkpoint):
    """Runs the query over all available rows; returns the values that it adds to the table."""
    frame = spark.readStream.schema("x bigint").json(str(source))
    found = []
    called = remote.with_columns(frame, {"y": remote.function("feels")("x")})
    query = (
        called.writeStream.foreachBatch(lambda batch, _: found.extend(row.y for row in batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(90)
    assert query.exception() is None
    return sorted(found)


def test_a_restarted_query_keeps_its_version_until_another_is_chosen(spark, serve, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    (source / "one.json").write_text('{"x": 10}\n')
    before = connect(spark, serve(feels_1).target, checkpoint=str(checkpoint))
    assert values(spark, before, source, checkpoint) == [11]

    (source / "two.json").write_text('{"x": 20}\n')
    updated = serve(feels_1, feels_2, later).target
    after = connect(spark, updated, checkpoint=f"{checkpoint}/")
    assert after.function("feels@2").spec.version == "2"
    assert after.function("later").spec.version == "1"
    assert values(spark, after, source, checkpoint) == [21]
    assert connect(spark, updated).function("feels").spec.version == "2"
    # A name has the same meaning in SQL.
    after.sql("SELECT feels(1) AS y").createOrReplaceTempView("y")
    assert [row.y for row in spark.table("y").collect()] == [2]


def test_a_session_keeps_the_version_that_the_weights_gave_it_and_its_summary_names_it(spark, serve, tmp_path):
    target = serve(feels_1, feels_2, weights={"feels@2": 0.5}).target
    sessions = [connect(spark, target) for _ in range(16)]
    drawn = {remote.function("feels").spec.version: remote for remote in sessions}
    assert drawn.keys() == {"1", "2"}  # one of 32,768 runs draws a single version
    for version, remote in drawn.items():
        with remote.summary() as summary:
            rows = remote.sql("SELECT feels(id) - id AS added FROM range(4)").collect()
            called = remote.with_columns(spark.range(2), {"later": remote.function("feels")("id")})
            rows += called.selectExpr("later - id AS added").collect()
        assert {row.added for row in rows} == {int(version)}
        assert {row.function for row in summary.rows()} == {f"feels@{version}"}
        assert f"feels@{version}" in remote.explain(remote.sql("SELECT feels(1)"))
        assert remote.function("feels@1").spec.version == "1"

    # A streaming query keeps the version of its checkpoint, whatever a later session would get.
    checkpoint = str(tmp_path / "checkpoint")
    pinned = connect(spark, target, checkpoint=checkpoint).function("feels").spec.version
    again = {connect(spark, target, checkpoint=checkpoint).function("feels").spec.version for _ in range(8)}
    assert again == {pinned}


def test_the_session_that_begins_a_checkpoint_uses_the_version_that_it_pins(spark, serve, tmp_path):
    listed = connect(spark, serve(feels_1, feels_2).target).functions()
    # The lower one, as the weights may choose it, or servers during a rolling update.
    begun = pinned(spark, str(tmp_path), Functions(listed, {"feels": "1"}))
    later = pinned(spark, str(tmp_path), Functions(listed))
    assert [begun.find("feels").version, later.find("feels").version] == ["1", "1"]


def test_a_pinned_version_that_is_gone_is_named(spark, serve, tmp_path):
    connect(spark, serve(feels_1).target, checkpoint=str(tmp_path))
    gone = connect(spark, serve(feels_2).target, checkpoint=str(tmp_path))
    with pytest.raises(UnknownFunction, match=r"function 'feels' has no version '1' \(known: 2\)"):
        gone.function("feels")


@pytest.mark.parametrize("text", [json.dumps({"name": "feels", "version": "new"}), json.dumps({"other": 1}), "{"])
def test_a_folder_that_holds_something_else_is_refused(spark, serve, tmp_path, text):
    folder = tmp_path / "remote_udf_versions"
    folder.mkdir()
    (folder / "part.json").write_text(text + "\n")
    with pytest.raises(PlanError, match="remote_udf_versions does not hold versions of functions"):
        connect(spark, serve(feels_1).target, checkpoint=str(tmp_path))
