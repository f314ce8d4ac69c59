"""What most tests share: a real server in this process, and one Spark session per process."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.leftovers import Leftovers, watch_streams
from udf_server.declaring.functions import Function
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import Server

watch_streams()
# A server that a test starts has one process, also where the CPU time of the tests is limited to several cores.
os.environ.setdefault("UDF_CONFIG_PROCESSES", "1")


@pytest.fixture(autouse=True)
def _nothing_outlives_its_stream() -> Iterator[None]:
    """Fails a test after which a stream, its shared memory, a file or a thread of its own is still there."""
    before = Leftovers()
    yield
    if more := before.more():
        pytest.fail(f"left behind: {dict(more)}")


def _levels() -> dict[str, int]:
    ours = {name: each for name, each in logging.root.manager.loggerDict.items() if name.startswith("udf_server")}
    return {name: each.level for name, each in ours.items() if isinstance(each, logging.Logger)}


@pytest.fixture(autouse=True)
def _log_levels_are_set_back() -> Iterator[None]:
    """No test sees more or less of the log because of those before it: commands and `configure_logging` set levels."""
    before = _levels()
    yield
    for name, level in _levels().items():
        if level != before.get(name, logging.NOTSET):
            logging.getLogger(name).setLevel(before.get(name, logging.NOTSET))


# Short queries in many short-lived JVMs: the optimizing compiler takes more CPU time than it saves. Without it a JVM
# has 48 MB for compiled code, and a long session keeps searching them for code that it may discard.
# Hadoop starts `chmod` for each file that it writes: VFORK starts it without a helper between.
JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
# `make test` makes it, see class_archive.py. A JVM that finds none, or one that does not fit, starts as usual.
ARCHIVE = Path(__file__).parents[1] / "build/spark.jsa"
if " " not in str(ARCHIVE) and ARCHIVE.exists():
    JVM += f" -Xlog:disable -XX:SharedArchiveFile={ARCHIVE}"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files with long tests first, so that no worker is left alone with one of them at the end."""
    long = {item.path for item in items if item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in long)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freezes what was imported and collected, most of all objects: the garbage collector then need not walk it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Names what fails at once, and not only at the end, which a run that is stopped does not reach."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        # The beginning names an object that was left to the garbage collector, the end where a test failed.
        crash = getattr(report.longrepr, "reprcrash", None)
        text = f"{crash.message[:300] if crash else ''} [...] {report.longreprtext[-300:]}"
        said = f"{report.nodeid} ({report.when}, {report.duration:.0f} s): {text}"
        print(f"\nFAILED {said}", file=sys.__stderr__, flush=True)


UNIT = tuple(str(Path(__file__).parent / name) for name in ("remote_udf", "udf_server", "spark_client"))
"""Folders whose tests start no process unless they are marked slow or long."""
_unit: list[str] = []
"""The test that runs, if it may start no process."""


def _refuse_processes(event: str, arguments: object) -> None:
    if _unit and event in ("subprocess.Popen", "os.fork", "os.posix_spawn"):
        raise RuntimeError(f"{_unit[-1]} starts a process: mark it `pytest.mark.slow`, for `make unit` starts none")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Holds tests to what `make unit` promises."""
    is_unit = str(item.path).startswith(UNIT) and not any(map(item.get_closest_marker, ("slow", "long")))
    if is_unit:
        _unit.append(item.nodeid)
    try:
        return (yield)
    finally:
        if is_unit:
            _unit.pop()


@dataclass
class Serving:
    """A server that runs on a thread of the test process, so that tests and functions share variables."""

    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def target(self) -> str:
        return self.server.target

    def metric(self, name: str, **labels: str) -> float:
        """A sample of the server's metrics; 0.0 if there is none."""
        return self.server.metrics.registry.get_sample_value(name, labels) or 0.0

    def stop(self, drain_seconds: float = 0.0) -> None:
        asyncio.run_coroutine_threadsafe(self.server.stop(drain_seconds), self.loop).result(30)


Serve = Callable[..., Serving]


@contextlib.contextmanager
def serving(*functions: Function, **settings: Any) -> Iterator[Serving]:
    """A server with these functions on a free port, or with other settings."""
    started: list[Serving] = []
    failures: list[BaseException] = []
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        config = ServerConfig(**{"port": 0, "metrics_port": 0, "entry_points": False, **settings})
        server = Server(config, Registry([("test", function) for function in functions]))
        try:
            await server.start()
        except BaseException as error:
            failures.append(error)
            ready.set()
            return
        started.append(Serving(server, asyncio.get_running_loop()))
        ready.set()
        await asyncio.get_running_loop().run_in_executor(None, done.wait)
        await server.stop(drain_seconds=0.0)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="test-server", daemon=True)
    thread.start()
    ready.wait(30)
    if failures:
        raise failures[0]
    try:
        yield started[0]
    finally:
        done.set()
        thread.join(30)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers: `serve(function, ..., setting=value)`. They stop at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *functions, **settings: stack.enter_context(serving(*functions, **settings))


SESSION_ZONE = "America/Los_Angeles"
"""Not the machine's and not UTC, so that a test notices who mixes them up. A test that sets another sets it back."""
SPARK_MODE = os.environ.get("REMOTE_UDF_TEST_SPARK", "classic")
"""`connect` runs the tests marked so against Spark Connect; test_connect.py does."""


@pytest.fixture(scope="session")
def started_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The process's Spark session, with two local executors' worth of cores."""
    from pyspark.sql import SparkSession

    from spark_client.planning.aggregate import sizes
    from tests.spark_connect import connect_session

    # No plan depends on how long Spark takes here, or took for the tests before.
    sizes.SLOW_SECONDS = float("inf")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if SPARK_MODE == "connect":
        session = connect_session(SparkSession.builder)
    else:
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
        # Not in the working directory, which other processes have, too.
        builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        session = builder.getOrCreate()
    # More than one, for rows of a key must meet; few, for each partition has a task, and on streams a state store.
    session.conf.set("spark.sql.shuffle.partitions", "2")
    session.conf.set("spark.sql.session.timeZone", SESSION_ZONE)
    yield session
    session.stop()


AS_JOBS = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""What `QUICK` of the Makefile sets otherwise."""
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"


def runs_as_jobs(file: Path) -> bool:
    """Whether `make test-all` has Spark compile queries and write checkpoints as by default. It does in a quarter.

    The name determines it, so that a file fails again where it has failed.
    """
    name = file.relative_to(Path(__file__).parent).as_posix()
    return zlib.crc32(name.encode()) % 4 == 2


@pytest.fixture(scope="module")
def spark(started_spark: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The process's Spark session. No file depends on the settings, functions and views of those that ran before it."""
    before = dict(started_spark.conf.getAll)
    if request.config.getoption("as_jobs") and runs_as_jobs(request.path):
        for key, value in AS_JOBS.items():
            started_spark.conf.set(key, value)
        started_spark.conf.unset(CHECKPOINT_FILES)
    yield started_spark
    set_back(started_spark, before)


def set_back(session: Any, settings: dict[str, str]) -> None:
    """Gives a session these settings and no others, and leaves it no temporary function or view."""
    for (name,) in session.sql("SHOW USER FUNCTIONS").collect():
        session.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{name}`")
    for view in session.sql("SHOW VIEWS").where("isTemporary").collect():
        session.catalog.dropTempView(view.viewName)
    found = dict(session.conf.getAll)
    for key in found.keys() - settings.keys():
        session.conf.unset(key)
    for key, value in settings.items() - found.items():
        session.conf.set(key, value)


@pytest.fixture
def remote(spark: Any, serve: Serve) -> Callable[..., Any]:
    """A remote session over a server with these functions: `remote(function, ...)`."""
    from spark_client import connect

    return lambda *functions, **settings: connect(spark, serve(*functions, **settings).target)


@pytest.fixture(autouse=True)
def _only_connect_tests(request: pytest.FixtureRequest) -> None:
    if SPARK_MODE == "connect" and request.node.get_closest_marker("connect") is None:
        pytest.skip("this run is for tests marked connect")


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[[str], str]:
    """Writes a plugin file; returns its path, as `--plugin` takes it."""

    def write(text: str, name: str = "a_plugin.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write
