"""The lookups run against a SQLite file and, if it is installed, against PostgreSQL."""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import event

import udf_sql
from remote_udf.errors import StreamError
from udf_server import RetryableError
from udf_server.testing import FunctionEnvironment
from udf_sql.database import Database
from udf_sql.settings import InvalidSetting, SqlSettings
from udf_sql.statements import InvalidStatement, read_statements

SECRET = "s3cr3t-pa55"

STATEMENTS = """
[product]
description = "What a product is called and costs."
statement = "SELECT name, price, id FROM product WHERE id = :id"
parameters = "id bigint"
returns = "name string, price double"

[cheaper]
statement = "SELECT count(*) AS products FROM product WHERE price < :price AND name <> :name"
parameters = "price double, name string"
returns = "products bigint"
options = { timeout = "5 s" }
version = "2"

[products]
statement = "SELECT id, name FROM product WHERE id IN :id"
parameters = "id bigint"
key = "id"
returns = "name string"

[named]
statement = "SELECT id FROM product WHERE name LIKE :name"
parameters = "name string"
returns = "id bigint"
"""

PRODUCTS = [(1, "lamp", 9.5), (2, "pen", 1.25), (3, "für", 2.0), (4, None, 3.0), (1 << 40, "far", 4.0)]


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Creates a database in a file for the plugin; `configured(statements)` returns its functions by name."""
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        shop.executemany("INSERT INTO product VALUES (?, ?, ?)", PRODUCTS)
    shop.close()

    def configure(statements=STATEMENTS, url=f"sqlite+aiosqlite:///{tmp_path}/shop.db", **settings):
        (tmp_path / "statements.toml").write_text(statements)
        monkeypatch.setenv("UDF_SQL_STATEMENTS", str(tmp_path / "statements.toml"))
        monkeypatch.setenv("UDF_SQL_URL", url)
        for name, value in settings.items():
            monkeypatch.setenv(f"UDF_SQL_{name.upper()}", str(value))
        return {function.spec.name: function for function in udf_sql.udf_functions()}

    return configure


async def run(function, *arguments, **options):
    async with FunctionEnvironment() as environment:
        return await environment.run(function, *arguments, **options)


async def test_a_statement_is_a_function_with_its_types_and_options(configured):
    functions = configured()
    assert [function.spec.signature for function in functions.values()] == [
        "product(id bigint) -> struct<name:string,price:double>",
        "cheaper(price double, name string) -> struct<products:bigint>",
        "products(id bigint) -> struct<name:string>",
        "named(name string) -> struct<id:bigint>",
    ]
    assert functions["product"].spec.description == "What a product is called and costs."
    assert functions["products"].spec.description.startswith("SELECT id, name FROM")
    assert (functions["cheaper"].spec.version, functions["cheaper"].spec.options["timeout"]) == ("2", "5 s")


async def test_rows_are_looked_up_and_what_is_not_there_is_null(configured):
    functions = configured()
    result = await run(functions["product"], [2, 99, None, 4, 1 << 40])
    assert result.to_pylist() == [
        {"name": "pen", "price": 1.25},
        None,
        None,
        {"name": None, "price": 3.0},
        {"name": "far", "price": 4.0},
    ]
    assert (await run(functions["cheaper"], [3.0, 3.0], ["pen", "lamp"])).to_pylist() == [
        {"products": 1},
        {"products": 2},
    ]


async def test_the_keys_of_a_batch_are_asked_for_together(configured, caplog):
    caplog.set_level(logging.INFO, "sqlalchemy.engine")
    keys = [2, 99, None, 3, 2, *range(1000, 1600)]
    result = await run(configured()["products"], keys)
    pen, last = {"name": "pen"}, [None] * 600
    assert result.to_pylist() == [pen, None, None, {"name": "für"}, pen, *last]
    asked = [record for record in caplog.records if "SELECT id, name" in record.getMessage()]
    assert len(asked) == 2


async def test_two_rows_for_one_are_an_error_of_its_row(configured):
    twice = STATEMENTS.replace("SELECT id, name", "SELECT id / 2 AS id, name")
    result = await run(configured(twice)["named"], ["lamp", "%", "pen"])
    assert result.values.to_pylist() == [{"id": 1}, None, {"id": 2}]
    assert result.errors[1].message.startswith("LookupRefused: named: more than one row for '%'")


TWICE = """
[twice]
statement = "SELECT k, v FROM (SELECT 1 AS k, 'a' AS v UNION ALL SELECT 1, 'b' UNION ALL SELECT 2, 'c') WHERE k IN :k"
parameters = "k int"
key = "k"
returns = "v string"
"""


async def test_two_rows_for_one_key_fail_alone_in_a_batch(configured):
    result = await run(configured(TWICE)["twice"], [1, 2, 3])
    assert result.values.to_pylist() == [None, {"v": "c"}, None]
    assert result.errors[0].message.startswith("LookupRefused: twice: more than one row for 1")


ENDLESS = """
[endless]
statement = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < :n) SELECT max(n) AS n FROM t"
parameters = "n bigint"
returns = "n bigint"
"""


async def test_a_column_that_is_not_there_is_named(configured):
    functions = configured(STATEMENTS.replace("name string, price double", "title string"))
    result = await run(functions["product"], [1])
    assert "product: has no column title; it has name, price, id" in result.errors[0].message


async def test_a_value_of_another_type_is_an_error_of_its_row(configured):
    functions = configured(STATEMENTS.replace("name string, price double", "name bigint"))
    result = await run(functions["product"], [1, 4])
    assert list(result.errors) == [0]
    assert result.values.to_pylist()[1] == {"name": None}


async def test_no_more_connections_are_used_than_allowed(configured):
    opened = set()
    functions = configured(connections=3)
    database = Database(SqlSettings.from_environment())

    def count(connection, record):
        opened.add(record)

    event.listen(database._engine.sync_engine.pool, "connect", count)
    statement = read_statements(SqlSettings.from_environment().statements)[0]
    found = await asyncio.gather(*(database.one(statement, [1 + i % 3]) for i in range(200)))
    await database.close()
    await database.close()
    assert len(opened) == 3
    assert [row["name"] for row in found[:3]] == ["lamp", "pen", "für"]
    assert len((await run(functions["product"], [1] * 200)).to_pylist()) == 200


async def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_allowed(configured):
    result = await run(configured(ENDLESS, attempt_seconds=0.05)["endless"], [3_000_000], max_attempts=1)
    assert "RetryableError: endless: no answer in time" in result.errors[0].message


async def test_a_statement_that_cannot_be_run_is_an_error(configured):
    functions = configured(STATEMENTS.replace("FROM product WHERE id = :id", "FROM absent WHERE id = :id"))
    result = await run(functions["product"], [1], max_attempts=2, initial_delay="1 ms")
    assert "product: no such table: absent" in result.errors[0].message


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ("", "has no statement"),
        ("a = 1", "statement 'a': is 1 and not a table"),
        ("[a]\nstatement = 'SELECT 1'", "statement 'a': has no parameters, returns"),
        ("[a]\nsql = 'SELECT 1'", "statement 'a': has sql; known are statement, "),
        ("[a]\nstatement = 1", "statement 'a': statement is 1 and not text"),
        ("[a]\nstatement='SELECT :x AS y'\nparameters='z int'\nreturns='y int'", "binds x; its parameters are z"),
        (
            "[a]\nstatement='SELECT :x AS y'\nparameters='x thing'\nreturns='y int'",
            "parameters: .* is not a Spark type",
        ),
        ("[a]\nstatement='SELECT :x, :z'\nkey='k'\nparameters='x int, z int'\nreturns='y int'", "takes one parameter"),
        ("[a", "Expected ']'"),
    ],
)
def test_a_wrong_statement_is_named(configured, statements, message):
    with pytest.raises(InvalidStatement, match=message) as caught:
        configured(statements)
    assert "statements.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("URL", "", "UDF_SQL_URL is not set"),
        ("CONNECTIONS", "many", "UDF_SQL_CONNECTIONS is not a whole number greater than zero"),
        ("ATTEMPT_SECONDS", "nan", "UDF_SQL_ATTEMPT_SECONDS is not a number greater than zero"),
    ],
)
def test_a_wrong_setting_is_named_when_the_plugin_is_loaded(configured, variable, value, message):
    with pytest.raises(InvalidSetting, match=message):
        configured(**{variable.lower(): value})


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"nothing:{SECRET}", "UDF_SQL_URL is not a URL of SQLAlchemy"),
        (f"postgresql+nothing://a:{SECRET}@x/y", "which SQLAlchemy does not know"),
        (f"postgresql+asyncmy://a:{SECRET}@x/y", "which SQLAlchemy does not know"),
        (f"mysql+asyncmy://a:{SECRET}@x/y", "install its driver asyncmy"),
        ("sqlite:///file", "names sqlite, which is not asynchronous"),
        ("sqlite+aiosqlite://", "a database of one connection"),
    ],
)
async def test_a_url_that_cannot_be_used_is_not_shown(configured, url, message):
    functions = configured(url=url)
    with pytest.raises(StreamError, match=message) as caught:
        await run(functions["product"], [1])
    assert caught.value.code == "OPEN_FAILED"
    assert SECRET not in str(caught.value) + caught.value.traceback


def test_without_statements_there_are_no_functions_and_nothing_is_loaded(monkeypatch):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("UDF_SQL")}
    code = "import sys, udf_sql; assert udf_sql.udf_functions() == []; assert 'sqlalchemy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_installed_package_is_a_plugin(monkeypatch):
    monkeypatch.delenv("UDF_SQL_STATEMENTS", raising=False)
    (point,) = importlib.metadata.entry_points(group="udf_server", name="sql")
    assert point.load().udf_functions() == []


def tool(name):
    """The path of a PostgreSQL tool, which Debian does not put on PATH; None if it is not installed."""
    folders = sorted(str(folder) for folder in Path("/usr/lib/postgresql").glob("*/bin"))
    return shutil.which(name, path=os.pathsep.join([*folders, os.environ["PATH"]]))


class PostgreSQL:
    """A separate server in a folder; as root it runs as the user of Debian's package."""

    def __init__(self, folder):
        self.folder = folder
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
        if self.user:
            shutil.chown(folder, "postgres", "postgres")
        # Below those that the kernel gives to whoever asks for any: it must stay free while the server is stopped.
        self.port = 0
        while not self.port:
            port = 20_000 + secrets.randbelow(10_000)
            with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
                self.port = port
        (folder / "password").write_text(SECRET)
        self._run(
            "initdb", "-D", f"{folder}/data", "-U", "shop", "-A", "scram-sha-256", f"--pwfile={folder}/password", "-N"
        )
        self.start()

    def start(self):
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-l", f"{self.folder}/log", "-w", "-o", options, "start")

    def stop(self):
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "fast", "-w", "stop")

    def _run(self, name, *arguments):
        subprocess.run([tool(name), *arguments], check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self.user)


@pytest.fixture(scope="module")
def postgresql():
    if not all(map(tool, ("initdb", "pg_ctl"))):
        pytest.skip("needs PostgreSQL, a Debian package")
    # The folder is not below pytest's, which another user may not read.
    with tempfile.TemporaryDirectory() as folder:
        server = PostgreSQL(Path(folder))
        yield server
        server.stop()


SHOP = '''
[item]
statement = """SELECT * FROM (VALUES (1, 'lamp', 9.50::numeric(8,2)), (2, 'pen', NULL)) AS item (id, name, price)
WHERE id = :id"""
parameters = "id bigint"
returns = "name string, price decimal(8,2)"

[items]
statement = "SELECT id, name FROM (VALUES (1, 'lamp'), (2, 'pen')) AS item (id, name) WHERE id IN :id"
parameters = "id bigint"
returns = "name string"
key = "id"

[fails]
statement = "SELECT 1 / CAST(:x AS INTEGER) AS y"
parameters = "x int"
returns = "y int"
'''


async def test_postgresql_answers_row_by_row_and_by_batch(configured, postgresql):
    functions = configured(SHOP, f"postgresql+asyncpg://shop@127.0.0.1:{postgresql.port}/postgres", password=SECRET)
    result = await run(functions["item"], [1, 2, 3, 1] * 25)
    lamp, pen = {"name": "lamp", "price": Decimal("9.50")}, {"name": "pen", "price": None}
    assert result.to_pylist() == [lamp, pen, None, lamp] * 25
    result = await run(functions["items"], [2, 3, 1, 2])
    assert result.to_pylist() == [{"name": "pen"}, None, {"name": "lamp"}, {"name": "pen"}]
    result = await run(functions["fails"], [1, 0])
    assert result.values.to_pylist() == [{"y": 1}, None]
    assert (result.errors[1].attempts, "division by zero" in result.errors[1].message) == (1, True)


async def test_a_server_that_is_restarted_is_worth_another_attempt(configured, postgresql):
    configured(SHOP, f"postgresql+asyncpg://shop:{SECRET}@127.0.0.1:{postgresql.port}/postgres")
    statement = read_statements(SqlSettings.from_environment().statements)[0]
    database = Database(SqlSettings.from_environment())
    assert await database.one(statement, [2]) == {"name": "pen", "price": None}
    postgresql.stop()
    for _ in range(2):
        with pytest.raises(RetryableError):
            await database.one(statement, [2])
    postgresql.start()
    assert await database.one(statement, [2]) == {"name": "pen", "price": None}
    await database.close()


async def test_a_wrong_password_is_refused_and_no_password_is_ever_shown(configured, postgresql, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = SECRET + "-not"
    functions = configured(SHOP, f"postgresql+asyncpg://shop:{wrong}@127.0.0.1:{postgresql.port}/postgres")
    result = await run(functions["item"], [1])
    assert result.errors[0].attempts == 1
    assert "password authentication failed" in result.errors[0].message
    settings = SqlSettings.from_environment()
    database = Database(settings)
    await database.close()
    assert SECRET not in repr(settings) + repr(database) + caplog.text + str(result.errors[0])
    assert "shop:***@127.0.0.1" in repr(database)
