"""No public method that takes a path shows a credential in it: not in an error, a plan, a warning or the log."""

import logging
import traceback

import pytest

import udf_server as udf
from remote_udf.errors import RemoteUdfError
from spark_client import connect
from spark_client.shell.loop import Shell
from spark_client.shell.tables import add_table

SECRET = "Qq12/34+56Zz"
PATHS = [
    f"s3://KEY:{SECRET}@bucket/a.parquet",
    f"s3:/KEY:{SECRET}@bucket",
    f"s3a://KEY%3A{SECRET.replace('/', '%2F')}@bucket",
    f"https://account.blob.core.windows.net/c/a.parquet?sv=2024&sig={SECRET}",
    f"s3://bucket/a?session_token={SECRET}",
    f"/data/a.parquet?account_key={SECRET}",
    f"abfss://c@account.dfs.core.windows.net/a?sas_token={SECRET}",
]


@udf.scalar
async def same(v: int) -> int:
    return v


@udf.scalar(rows=True, returns="w bigint")
async def twice(v: int) -> list[dict[str, int]]:
    return [{"w": v}] * 2


@pytest.fixture
def served(serve):
    return serve(same, twice)


@pytest.fixture
def remote(spark, served):
    return connect(spark, served.target)


def calls(spark, remote, served, path):
    """Every way to pass a path, by its name."""
    table = spark.range(3).withColumnRenamed("id", "v")
    letters = {"on_error": "dead-letter", "dead_letter": path}
    f, create = (
        remote.function("same"),
        "CREATE OR REPLACE MODEL m WITH ('function' = 'same', 'on-error' = 'dead-letter', ",
    )

    def by_setting():
        setting = "spark.remoteudf.async-scalar.same.dead-letter"
        spark.conf.set(setting, path)
        try:
            remote.with_columns(table, {"x": f("v")}, on_error="dead-letter")
        finally:
            spark.conf.unset(setting)

    return {
        "read_parquet": lambda: remote.read_parquet("/tmp", path, filter="v = 1"),
        "remote_parquet": lambda: remote.sql(f"SELECT * FROM remote_parquet('{path}')"),
        "explain": lambda: remote.explain(f"SELECT * FROM remote_parquet('{path}')"),
        "write_parquet": lambda: remote.write_parquet(table, path, mode="overwrite"),
        "replay": lambda: remote.replay(path),
        "replay of a run": lambda: remote.replay(path, run="a"),
        "with_columns": lambda: remote.with_columns(table, {"x": f("v")}, **letters),
        "select": lambda: remote.select(table, f("v"), **letters),
        "lateral_join": lambda: remote.lateral_join(table, remote.function("twice")("v"), **letters),
        "function": lambda: remote.with_columns(table, {"x": remote.function("same", **letters)("v")}),
        "register": lambda: remote.register("same", **letters),
        "model": lambda: (
            remote.sql(f"{create}'dead-letter' = '{path}')"),
            remote.sql("SELECT * FROM ML_PREDICT(TABLE {t}, MODEL m, DESCRIPTOR(v))", t=table),
        ),
        "setting": by_setting,
        "summary_directory": lambda: connect(spark, served.target, summary_directory=path),
        "checkpoint": lambda: connect(spark, served.target, checkpoint=path),
        "table of the shell": lambda: add_table(spark, path),
        "named table of the shell": lambda: add_table(spark, f"t={path}"),
    }


@pytest.mark.connect
@pytest.mark.parametrize("path", PATHS)
def test_a_path_with_a_credential_is_refused_and_not_shown(spark, remote, served, path, caplog, capsys):
    caplog.set_level(logging.DEBUG, "spark_client")
    told = {}
    for name, call in calls(spark, remote, served, path).items():
        # A session of Connect does not tell the values of settings that look like secrets.
        message = "the path has credentials" + "|needs the option 'dead-letter'" * (name == "setting")
        with pytest.raises((RemoteUdfError, ValueError), match=message) as refused:
            call()
        told[name] = "".join(traceback.format_exception(refused.value))
    written, complaints = [], []
    Shell(remote, written.append, complaints.append).feed(f"\\table t={path}")
    told |= {"shell": repr((written, complaints)), "log": caplog.text, "output": repr(capsys.readouterr())}
    assert "the path has credentials" in told["shell"]
    parts = (SECRET, SECRET.replace("/", "%2F"), "12/34", "34+56Zz")
    assert [name for name, text in told.items() if any(part in text for part in parts)] == []


@pytest.mark.parametrize("target", [f"https://me:{SECRET}@host", "me:Qq1234@host:50051", f"http://host?token={SECRET}"])
def test_a_target_with_a_password_is_refused_and_not_shown(spark, target):
    with pytest.raises(ValueError, match="target") as refused:
        connect(spark, target)
    assert "Qq12" not in str(refused.value) and "34" not in str(refused.value)
