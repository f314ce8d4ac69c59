"""Edit, run, see: the next query of a session uses the plugin's files as they are, in whichever way it calls them."""

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError, connect
from spark_client.embedded import embedded_server

PLUGIN = """
import udf_server as udf
{head}

@udf.scalar{options}
def f({parameters}) -> int:
    return {value}


class Total(udf.AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def accumulate(self, accumulator: int, x: int) -> int:
        return accumulator + x * {factor}

    def get_value(self, accumulator: int) -> {total}:
        return {total}(accumulator)
"""


class Plugin:
    """A file that is edited, the session that calls it, and its folder."""

    def __init__(self, spark, folder, kind):
        self.spark, self.folder, self.kind = spark, folder, kind
        self.path = folder / "edited_udfs.py"

    def edit(self, value="x", parameters="x: int", head="", factor=1, total="int", options=""):
        text = PLUGIN.format(value=value, parameters=parameters, head=head, factor=factor, total=total, options=options)
        self.path.write_text(text)

    def connect(self):
        if self.kind == "local":
            return connect(self.spark, f"local:{self.path}")
        return connect(self.spark, plugins=[str(self.path)])

    def values(self, frame):
        return sorted(row[0] for row in frame.collect())


@pytest.fixture(params=["embedded", "local"])
def plugin(request, spark, tmp_path):
    made = Plugin(spark, tmp_path, request.param)
    yield made
    if request.param == "embedded":
        embedded_server([str(made.path)]).stop()


@pytest.mark.connect
def test_a_relative_file_is_that_of_the_folder_in_which_it_was_named(spark, tmp_path, monkeypatch):
    plugin = Plugin(spark, tmp_path, "local")
    plugin.edit("x + 1")
    monkeypatch.chdir(tmp_path)
    f, rows = connect(spark, f"local:{plugin.path.name}").function("f"), spark.range(1, 3, 1, 1)
    monkeypatch.chdir("/")
    assert plugin.values(rows.select(f("id"))) == [2, 3]
    plugin.edit("x + 2")
    assert plugin.values(rows.select(f("id"))) == [3, 4]


@pytest.mark.connect
def test_each_way_to_call_a_function_uses_the_edited_code(plugin, spark):
    plugin.edit("x + 1")
    remote = plugin.connect()
    f, rows = remote.function("f"), spark.range(1, 3, 1, 1)
    planned = rows.select(f("id"))
    remote.register("f")
    assert plugin.values(planned) == [2, 3]

    plugin.edit("x + 2")
    assert plugin.values(planned) == [3, 4]
    plugin.edit("x + 3")
    assert plugin.values(spark.sql("SELECT f(id) FROM range(1, 3, 1, 1)")) == [4, 5]
    plugin.edit("x + 4")
    assert plugin.values(rows.select(f("id"))) == [5, 6]
    plugin.edit("x + 5")
    assert plugin.values(plugin.connect().sql("SELECT f(id) FROM range(1, 3, 1, 1)")) == [6, 7]
    plugin.edit("x + 6")
    assert plugin.values(remote.with_columns(rows, {"y": f("id")}).select("y")) == [7, 8]


def test_a_changed_signature_is_seen_by_the_session_or_the_error_says_what_to_do(plugin, spark):
    plugin.edit("x + 1")
    remote = plugin.connect()
    f, total, rows = remote.function("f"), remote.function("total"), spark.range(1, 3, 1, 1)
    planned = rows.select(f("id"))
    remote.register("f")
    assert plugin.values(planned) == [2, 3]

    plugin.edit("x * y", parameters="x: int, y: int", factor=10, total="str")
    for late in (planned, spark.sql("SELECT f(id) FROM range(1, 3, 1, 1)")):
        with pytest.raises(Exception, match=r"FUNCTION_CHANGED(.|\n)*Look the function up again, or register it again"):
            late.collect()
    assert plugin.values(rows.select(f("id", F.lit(5)))) == [5, 10]
    assert plugin.values(remote.sql("SELECT f(id, 7) FROM range(1, 3, 1, 1)")) == [7, 14]
    assert plugin.values(remote.group_by(rows).agg(total("id"))) == ["30"]
    assert remote.function("f").spec.signature == "f(x bigint, y bigint) -> bigint"
    assert [spec.signature for spec in remote.functions() if spec.name == "f"] == ["f(x bigint, y bigint) -> bigint"]
    remote.register("f")
    assert plugin.values(spark.sql("SELECT f(id, 2) FROM range(1, 3, 1, 1)")) == [2, 4]


def test_what_does_not_import_fails_with_its_traceback_until_it_is_repaired(plugin, spark):
    helper = plugin.folder / "edited_helper.py"
    helper.write_text("K = 1\n")
    plugin.edit("x + K", head="from edited_helper import K")
    remote = plugin.connect()
    f, rows = remote.function("f"), spark.range(1, 3, 1, 1)
    planned = rows.select(f("id"))
    assert plugin.values(planned) == [2, 3]

    helper.write_text("K = 2 / 0\n")
    for broken in (planned.collect, lambda: rows.select(f("id")), plugin.connect):
        with pytest.raises(Exception, match=r"cannot be imported: ZeroDivisionError(.|\n)*K = 2 / 0"):
            broken()
    helper.write_text("K = 2\n")
    assert plugin.values(planned) == [3, 4]
    plugin.path.write_text("import udf_server as udf\n\ndef f(:\n")
    with pytest.raises(Exception, match=r"cannot be imported: SyntaxError(.|\n)*def f\(:"):
        remote.sql("SELECT f(id) FROM range(1, 3, 1, 1)")
    plugin.edit("x + K", head="from edited_helper import K")
    helper.write_text("K = 3\n")
    assert plugin.values(planned) == [4, 5]


def test_a_function_that_becomes_an_aggregate_has_to_be_looked_up_again(plugin, spark):
    plugin.edit()
    remote = plugin.connect()
    f, rows = remote.function("f"), spark.range(1, 3, 1, 1)
    plugin.path.write_text(plugin.path.read_text().replace("def f(", "def another(").replace("class Total", "class F"))
    with pytest.raises(PlanError, match="function f@1 was edited and is of kind aggregate now: look it up again"):
        f("id")
    assert plugin.values(remote.group_by(rows).agg(remote.function("f")("id"))) == [3]


@pytest.mark.parametrize("plugin", ["embedded"], indirect=True)
def test_a_streaming_query_takes_over_an_edit_between_two_micro_batches(plugin, spark, source, tmp_path):
    plugin.edit("x + 10")
    remote = plugin.connect()
    rows = spark.readStream.schema("x bigint").json(str(source))
    seen = []
    query = (
        remote.with_columns(rows, {"y": remote.function("f")("x")})
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.extend(row.y for row in frame.collect()))
        .start()
    )
    try:
        (source / "1.json").write_text('{"x": 1}')
        query.processAllAvailable()
        plugin.edit("x + 20")
        (source / "2.json").write_text('{"x": 2}')
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [11, 22]


@pytest.mark.connect
@pytest.mark.parametrize("plugin", ["embedded"], indirect=True)
def test_tasks_of_a_running_query_are_not_disturbed_by_an_edit(plugin, spark):
    # The first call edits the file, which then does not import.
    plugin.edit("__import__('pathlib').Path(__file__).write_text('def f(:') + x")
    f = plugin.connect().function("f")
    planned = spark.range(0, 6, 1, 6).select(f("id"))
    assert plugin.values(planned) == [7, 8, 9, 10, 11, 12]
    with pytest.raises(Exception, match=r"PLUGIN_FAILED: after an edit, plugin (.|\n)*SyntaxError"):
        planned.collect()
