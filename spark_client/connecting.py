"""`connect` creates a RemoteSession."""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from remote_udf.errors import InvalidOption
from remote_udf.function_names import version_key
from spark_client.base.budget import OverBudget, SessionBudget
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.job_tags import cancel_on_interrupt
from spark_client.base.notebooks import shorten_tracebacks
from spark_client.base.requirements import warn_of_worker_python
from spark_client.base.security import Security
from spark_client.base.targets import absolute_target, require_no_credentials, require_target
from spark_client.embedded import embedded_server, executors_are_local, require_local_executors
from spark_client.executor.stream.in_process import local_transport
from spark_client.functions.directory import Functions, list_functions
from spark_client.session import RemoteSession
from spark_client.summary.collector import collecting, context_of

__all__ = ["connect", "pinned"]

PINS_FOLDER = "remote_udf_versions"
_PINS_SCHEMA = "name string, version string"


def connect(
    spark: SparkSession,
    target: str | None = None,
    *,
    plugins: Sequence[str] = (),
    connect_seconds: float = ClientConfig.connect_seconds,
    security: Security | None = None,
    max_stream_seconds: float = ClientConfig.max_stream_seconds,
    max_replays: int = ClientConfig.max_replays,
    shared_memory: bool = ClientConfig.shared_memory,
    summary_directory: str | None = None,
    checkpoint: str | None = None,
    short_tracebacks: bool = True,
    budget: Mapping[str, float | str] | None = None,
    over_budget: OverBudget = "fail",
    condition_sample: int = 0,
    micro_batch: tuple[str, int] | None = None,
) -> RemoteSession:
    """Connect a Spark session, classic or Connect, to a server.

    Without a target, an embedded server is started as a process on this machine, once per list of `plugins`. It can be
    used only if the executors run on this machine.

    Args:
        spark: The Spark session.
        target: The address for the executors: "host:port", "unix:/path", "dns:///name:port", or several with commas.
            On a local master, relative paths, also those of `security`, are resolved against this process's folder.
        plugins: Modules, .py files or names of installed plugins for the embedded server. By default it has all
            installed plugins.
        connect_seconds: How long to wait for a first answer, on the driver and in every task.
        security: TLS and tokens.
        max_stream_seconds: After this time a stream reconnects to the next server, so that new servers get work, unless
            servers tell their load. Streams compare their servers at least as often.
        max_replays: How often the rows of a lost server are sent again at most.
        shared_memory: Exchange rows with a server on the executor's own host through shared memory, if possible.
        summary_directory: For `summary` on Spark Connect: a path or URI that executors can write and Spark can read.
        checkpoint: A path, such as the checkpoint of a streaming query, at which the versions of functions are kept.
        budget: What all calls of this session may spend together: `{"usd": 10, "calls": 100_000, "errors": "1 %"}`.
            `calls` are calls of functions, `errors` rows that fail, by number or share, and other units what functions
            report with `context.spend`. It never refills.
        over_budget: Once the budget is spent, queries `fail`, or rows that are left get the error BUDGET_SPENT and
            follow their `on_error`.
        condition_sample: In `sql`, order the remote conditions of a WHERE by their cost and by how many rows they drop.
            Both are measured when a query is planned: all conditions are called for that number of rows. 0, the
            default, leaves the order of the text. `remote.explain` shows the order and its reasons.
        micro_batch: In a function of foreachBatch on Spark Connect: a name of the query that does not change when it is
            restarted, and the number of the micro-batch. If the micro-batch runs again, its dead letters are replaced.
            Elsewhere Spark knows both.
        short_tracebacks: In notebooks, show only the `root_cause` of an error; `%tb` shows the whole traceback.

    Returns:
        A session with the functions of the server. If `checkpoint` is given, a name without a version keeps the
        version that it had when the path was first used, also if the query is restarted.

    Raises:
        ServerUnavailable: No server answers.
        AccessDenied: The server rejects the caller, or a file of `security` cannot be read.
        NotARemoteUdfServer: Something else answers at the target.
        EmbeddedServerFailed: The embedded server does not start, or executors cannot reach it.
        InvalidOption: The budget or `condition_sample` is malformed.
        PlanError: A path has credentials.
        TypeError: `spark` is not a Spark session, or `micro_batch` is not a name and a number.
        ValueError: The target is not an address, or a token would be sent unencrypted.
    """
    _require_session(spark)
    if short_tracebacks:
        shorten_tracebacks()
    bound = None if budget is None else SessionBudget.of(budget, over_budget)
    if bound is None and over_budget != "fail":
        raise InvalidOption("over_budget needs a budget")
    if bound is not None and (target or "").startswith("local:"):
        raise InvalidOption("a budget needs a server: at a target local:... each worker counts its own calls")
    if type(condition_sample) is not int or condition_sample < 0:
        raise InvalidOption(f"condition_sample: {condition_sample!r} is not a number of rows")
    for name, path in (("summary_directory", summary_directory), ("checkpoint", checkpoint)):
        require_no_credentials(path or "", f"connect: {name}")
    known = None if micro_batch is None else _micro_batch(*micro_batch)
    embedded = None
    if target is None:
        require_local_executors(spark)
        embedded = embedded_server(plugins)
        target = embedded.target
    elif plugins:
        raise ValueError("plugins are for the embedded server; a server at a target has its own")
    require_target(target)
    security = security or Security()
    here = absolute_target(target), security.absolute()
    if here != (target, security) and executors_are_local(spark):
        # Workers have the folder in which the JVM was started, which this process may have left since.
        target, security = here
    if context_of(spark) is not None:
        warn_of_worker_python(str(spark.conf.get("spark.master", "")))
    reporter, collector = collecting(spark, summary_directory)
    config = ClientConfig(
        target,
        connect_seconds,
        security,
        max_stream_seconds,
        max_replays,
        shared_memory,
        budget=bound,
        session=uuid.uuid4().hex,
        reporter=reporter,
        in_process=local_transport,
        micro_batch=known,
    )
    functions = list_functions(config)
    if bound is not None:
        config = dataclasses.replace(config, budget=dataclasses.replace(bound, ledger=functions.ledger))

    def with_pins(listed: Functions) -> Functions:
        return listed if checkpoint is None else pinned(spark, checkpoint, listed)

    functions = with_pins(functions)
    cancel_on_interrupt(spark)
    return RemoteSession(
        spark, config, functions, embedded, collector, condition_sample, lambda: with_pins(list_functions(config))
    )


def _micro_batch(query: str, number: int) -> tuple[str, int]:
    """The id of a query and the number of a micro-batch. The id is made of the name, in the form of Spark's ids."""
    if not isinstance(query, str) or type(number) is not int:
        raise TypeError(f"micro_batch is a name and a number, such as ('orders', 17); got {(query, number)!r}")
    return str(uuid.uuid5(uuid.NAMESPACE_URL, query)), number


def _require_session(spark: object) -> None:
    # The sessions of Spark classic and Connect have no class in common.
    if not hasattr(spark, "createDataFrame"):
        given = f"the text {spark!r}" if isinstance(spark, str) else f"a {type(spark).__name__}"
        raise TypeError(f'connect takes the Spark session first: connect(spark, "host:50051"); got {given}')


def pinned(spark: SparkSession, checkpoint: str, functions: Functions) -> Functions:
    """The functions; a name without a version means the version that it had when the checkpoint was first used.

    A name that is new to the checkpoint is pinned to its current version. Pins are JSON files in
    `<checkpoint>/remote_udf_versions`, which Spark writes and never changes. To use another version, remove the folder
    or request "name@version". If two drivers pin one name at the same time, the lower version is used.

    Raises PlanError if the files in the folder are not pins, and Spark's error if it cannot read or write them.
    """
    path = f"{checkpoint.rstrip('/')}/{PINS_FOLDER}"
    pins = _pins(spark, path)
    if new := {name: version for name, version in functions.versions.items() if name not in pins}:
        spark.createDataFrame(list(new.items()), _PINS_SCHEMA).coalesce(1).write.mode("append").json(path)
    return Functions(functions, {**functions.versions, **pins}, functions.weights, functions.ledger, functions.code)


def _pins(spark: SparkSession, path: str) -> Mapping[str, str]:
    try:
        rows = spark.read.schema(_PINS_SCHEMA).json(path).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return {}
    pins: dict[str, str] = {}
    for row in rows:
        try:
            pins[row.name] = min(row.version, pins.get(row.name, row.version), key=version_key)
        except (AttributeError, ValueError) as error:
            raise PlanError(f"{path} does not hold versions of functions: {row.asDict()}") from error
    return pins
