"""`remote-udf sql`, in its session and as a command."""

import csv
import json
import random
import subprocess
import sys

import pytest

import udf_server as udf
from spark_client import PlanError
from spark_client.shell.loop import Shell
from spark_client.shell.tables import add_table
from udf_server.security.access import hashed, new_token


@udf.scalar(nulls="skip")
async def plus_ten(x: int) -> int:
    """Ten more.

    And that is all.
    """
    if x < 0:
        raise ValueError("too small")
    return x + 10


@pytest.fixture
def shell(remote):
    """Creates a shell, and the lists of its output and its errors."""

    def make(**options):
        written, complaints = [], []
        return Shell(remote(plus_ten), written.append, complaints.append, **options), written, complaints

    return make


def test_a_statement_may_take_several_lines_and_a_line_several_statements(shell):
    one, written, complaints = shell()
    assert one.feed("SELECT plus_ten(x) AS y, 'a' AS z")
    assert one.in_statement and not written
    assert one.feed("FROM VALUES (1), (NULL) AS t(x) ORDER BY x; SELECT 1 AS one;")
    assert written[0].splitlines() == ["   y  z", "----  -", "NULL  a", "  11  a", "(2 rows)"]
    assert written[1].splitlines() == ["one", "---", "  1", "(1 row)"]
    assert not complaints and not one.in_statement


def test_a_failure_is_a_message_and_the_shell_goes_on(shell):
    one, written, complaints = shell()
    assert not one.feed("SELECT plus_ten(-1);")
    assert not one.feed("SELECT * FROM nowhere;")
    assert not one.feed("\\nothing")
    assert complaints[0].startswith("plus_ten(x=-1) of plus_ten@1 failed: FUNCTION_ERROR: ValueError: too small")
    assert "nowhere" in complaints[1] and "JVM" not in complaints[1]
    assert "\\help" in complaints[2]
    assert one.feed("SELECT 1 AS one;") and len(written) == 1


def test_a_script_ends_at_its_first_failure_and_needs_no_last_semicolon(shell):
    one, written, _ = shell(form="csv")
    assert one.run_all(["SELECT 'a,b' AS x;", "SELECT 2 AS y"])
    assert written == ['x\n"a,b"', "y\n2"]
    assert not one.run_all(["SELECT nothing;", "SELECT 3 AS z;"])
    assert len(written) == 2


def test_functions_and_tables_can_be_asked_for(shell, tmp_path):
    one, written, complaints = shell(form="json", rows=1)
    (tmp_path / "some-rows.csv").write_text("x,y\n1,a\n2,b\n")
    assert one.feed("\\functions")
    assert written[-1] == "plus_ten(x bigint) -> bigint  scalar: Ten more."
    assert one.feed("\\f plus_ten") and "And that is all" in written[-1]
    assert not one.feed("\\f other") and "other" in complaints[-1]
    assert one.feed(f"\\table {tmp_path}/some-rows.csv") and written[-1] == "table some_rows"
    assert one.feed("SELECT plus_ten(x) AS ten FROM some_rows;")
    assert json.loads(written[-1]) == {"ten": 11}
    assert one.feed("\\explain SELECT plus_ten(x) AS ten FROM some_rows;") and "plus_ten" in written[-1]
    assert one.feed("\\quit") and one.ended


def test_folders_are_tables_and_other_files_are_refused(spark, tmp_path):
    spark.range(3).write.parquet(str(tmp_path / "numbers"))
    assert add_table(spark, f"numbers_here={tmp_path}/numbers") == "numbers_here"
    assert spark.table("numbers_here").count() == 3
    (tmp_path / "notes.txt").write_text("?")
    for told, why in (
        (f"{tmp_path}/notes.txt", "found .txt"),
        (f"{tmp_path}/none.csv", "no file"),
        ("1x=a.csv", "name"),
    ):
        with pytest.raises(PlanError, match=why):
            add_table(spark, told)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("separator", [",", "\t"])
def test_files_are_read_as_rfc_4180_says(spark, tmp_path, encoding, separator):
    drawn, parts = random.Random(4180), ['"', '""', ",", "\n", "\\", '\\"', "'", " ", "\t", ";", "#", "é", "😀", "a"]
    texts = ["".join(drawn.choices(parts, k=drawn.randrange(1, 6))) for _ in range(200)]
    rows = [("id", "a text", "more\nlines"), *((str(n), text, f"{text[::-1]}x") for n, text in enumerate(texts))]
    ending = ".csv" if separator == "," else ".tsv"
    for quoting, end in ((csv.QUOTE_ALL, "\r\n"), (csv.QUOTE_MINIMAL, "\n")):
        path = tmp_path / f"{quoting}{ending}"
        with path.open("w", newline="", encoding=encoding) as file:
            csv.writer(file, quoting=quoting, lineterminator=end, delimiter=separator).writerows(rows)
        frame = spark.table(add_table(spark, f"given={path}"))
        assert tuple(frame.columns) == rows[0]
        assert [(str(n), *others) for n, *others in frame.collect()] == rows[1:]


def test_a_byte_order_mark_and_unusual_line_breaks_are_no_part_of_statements(tmp_path):
    (tmp_path / "one.sql").write_text("SELECT '\u2028\f' AS x;\n\ufeff\\quit\n", encoding="utf-8-sig")
    command = [sys.executable, "-m", "spark_client.shell", "sql", "--spark", "local[1]", "--format", "json"]
    done = subprocess.run(
        [*command, "--file", "one.sql"], cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert (done.stdout, done.returncode) == ('{"x": "\u2028\\f"}\n', 0), done.stderr


def test_the_command_starts_a_server_runs_its_statements_and_exits_with_a_status(tmp_path):
    (tmp_path / "shops.csv").write_text("shop,price\noslo,4\nnice,2\n")
    (tmp_path / "prices.py").write_text(
        "import udf_server as udf\n\n@udf.scalar\ndef twofold(x: int) -> int:\n    return 2 * x\n"
    )
    statements = ("SELECT shop, twofold(price) AS twice FROM shops ORDER BY shop", "SELECT twofold('red')")
    command = [sys.executable, "-m", "spark_client.shell", "sql", "--spark", "local[1]", "--plugin", "prices.py"]
    command += ["--format", "csv", "shops.csv", *(part for each in statements for part in ("-e", each))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout == "shop,twice\nnice,4\noslo,8\n"
    assert done.returncode == 1
    assert "Error: ARGUMENT_TYPE: function twofold@1, parameter 'x': expected bigint, found string" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_reaches_a_server_that_wants_a_token(tmp_path):
    token = new_token()
    (tmp_path / "token").write_text(token)
    (tmp_path / "access.toml").write_text(f'[me]\ntoken_sha256 = "{hashed(token)}"\n')
    (tmp_path / "prices.py").write_text("import udf_server as udf\n\n@udf.scalar\ndef one() -> int:\n    return 1\n")
    serve = [sys.executable, "-m", "udf_server", "serve", "--plugin", "prices.py", "--access-file", "access.toml"]
    serve += ["--no-entry-points", "--port", "0", "--metrics-port", "0", "--log-level", "error", "--stop-with-stdin"]
    with subprocess.Popen(serve, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        target = json.loads(server.stdout.readline())["target"]
        command = [sys.executable, "-m", "spark_client.shell", "sql", "--spark", "local[1]", "--format", "csv"]
        command += ["--target", target, "--token-file", str(tmp_path / "token"), "-e", "SELECT one() AS n"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
        server.stdin.close()
    assert (done.stdout, done.stderr.count("Error"), done.returncode) == ("n\n1\n", 0, 0), done.stderr
