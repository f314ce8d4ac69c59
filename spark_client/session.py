"""RemoteSession: the functions of one server in one Spark session. `connect` makes it."""

from collections.abc import Mapping, Sequence
from typing import Literal, Unpack, overload

from pyspark.sql import Column, DataFrame, SparkSession

from remote_udf.functions import FunctionKind, FunctionSpec
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import identifiers_of
from spark_client.base.notebooks import Explanation, FunctionList, how_connected, session_html
from spark_client.base.option_types import AggregateCallOptions, CallOptions, ProcessCallOptions, ScalarCallOptions
from spark_client.base.security import Security
from spark_client.embedded import EmbeddedServer, embedded_server, require_local_executors
from spark_client.executor.stream.in_process import local_transport
from spark_client.functions.aggregate import OverExpression, RemoteAggregate
from spark_client.functions.any_function import AnyFunction
from spark_client.functions.directory import Functions, list_functions
from spark_client.functions.registration import register_function
from spark_client.functions.scalar import RemoteFunction, SparkFunction
from spark_client.functions.version_pins import pinned
from spark_client.planning.aggregate.grouping import RemoteGrouping, positions_of
from spark_client.planning.dead_letters import replayed
from spark_client.planning.over.planner import add_over, select_over
from spark_client.planning.process.inputs import ByTable, Mode, Names, inputs_of, names_of
from spark_client.planning.process.normalising import normalised_inputs
from spark_client.planning.process.planner import plan_process
from spark_client.planning.process.uids import StreamUids
from spark_client.planning.rows.planner import plan_select, plan_with_columns
from spark_client.sql.explaining import plan_of, query_of, scalar_stages
from spark_client.sql.functions import SqlFunctions
from spark_client.sql.parsing import Parameters, Text
from spark_client.sql.statements import run_text
from spark_client.summary.collector import Collector, collecting, context_of, require_reports
from spark_client.summary.job_summary import JobSummary

__all__ = ["RemoteSession", "connect"]


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
) -> "RemoteSession":
    """Connects a Spark session, classic or Connect, to a server.

    `target` is where it listens as the executors see it: "host:port", "unix:/path", several with commas between
    them, or a name with many addresses, "dns:///name:port". `security` has TLS and tokens. A stream moves to the
    next server after `max_stream_seconds`; rows are sent again `max_replays` times at most. With `shared_memory`, rows
    for a server on the executor's own host go through memory shared with it, where both can.

    `summary_directory` is for `summary` on Spark Connect: a path or URI that every executor can write to and
    Spark can read. Each task writes a small file there. A classic session needs none, and writes none.

    With `checkpoint`, the checkpoint location of a streaming query or any other path that Spark can write to, a name
    without a version keeps the version that it meant when the path was first used: a query that is restarted goes on
    with its version although the servers have a higher one by now.

    Without a target, an embedded server is started as a process of this machine, once per `plugins` (modules or
    .py files to load besides the installed plugins); that works with executors on this machine only.

    Raises ServerUnavailable, AccessDenied, NotARemoteUdfServer or EmbeddedServerFailed.
    """
    embedded = None
    if target is None:
        require_local_executors(spark)
        embedded = embedded_server(plugins)
        target = embedded.target
    elif plugins:
        raise ValueError("plugins are for the embedded server; a server at a target has its own")
    reporter, collector = collecting(spark, summary_directory)
    config = ClientConfig(
        target,
        connect_seconds,
        security or Security(),
        max_stream_seconds,
        max_replays,
        shared_memory,
        reporter,
        in_process=local_transport,
    )
    functions = list_functions(config)
    if checkpoint is not None:
        functions = pinned(spark, checkpoint, functions)
    return RemoteSession(spark, config, functions, embedded, collector)


class RemoteSession:
    """The functions of one server, as they were when it was asked; types and versions are pinned then."""

    def __init__(
        self, spark: SparkSession, config: ClientConfig, functions: Functions,
        embedded: EmbeddedServer | None = None, collector: Collector | None = None,
    ) -> None:  # fmt: skip
        self.spark = spark
        self.config = config
        self.embedded = embedded
        """The embedded server, if `connect` started or found one."""
        self._collector = collector or Collector()
        self._functions = functions
        self._uids = StreamUids()
        self._planned: dict[object, SparkFunction] = {}
        self._registered: dict[str, Mapping[str, object]] = {}
        """Options by name, of functions given by `register`: `sql` must not change them."""

    def functions(self) -> FunctionList:
        """Every function in every version, by name, then version: a list, which notebooks show as a table."""
        return FunctionList(self._functions)

    @overload
    def function(
        self, name: str, *, kind: Literal["scalar"], **options: Unpack[ScalarCallOptions]
    ) -> RemoteFunction: ...
    @overload
    def function(
        self, name: str, *, kind: Literal["aggregate"], **options: Unpack[AggregateCallOptions]
    ) -> RemoteAggregate: ...
    @overload
    def function(self, name: str, *, kind: None = None, **options: Unpack[CallOptions]) -> AnyFunction: ...
    def function(
        self, name: str, *, kind: Literal["scalar", "aggregate"] | None = None, **options: object
    ) -> RemoteFunction | RemoteAggregate | AnyFunction:
        """The function "name" in its highest version, or "name@version", with call options.

        A RemoteFunction or a RemoteAggregate, by its kind. With `kind`, an editor and a type checker know which of
        them it is. Raises UnknownFunction, with what there is, or PlanError for a function of another kind.
        """
        function = self._function(name, options)
        if kind is not None and function.spec.kind != kind:
            raise PlanError(f"function {function.spec.key} is of kind {function.spec.kind}, not {kind}")
        return function

    def _function(self, name: str, options: Mapping[str, object]) -> RemoteFunction | RemoteAggregate:
        spec = self._functions.find(name)
        if spec.kind is FunctionKind.AGGREGATE:
            return RemoteAggregate(spec, self.spark, self.config, options)
        if spec.kind is FunctionKind.PROCESS:
            raise PlanError(f"function {spec.key} is a process table function: call it by remote.process or in SQL")
        return RemoteFunction(spec, self.spark, self.config, options, self._planned)

    def group_by(
        self, frame: DataFrame, *keys: str | Column, order_by: Sequence[str | Column] | str | Column = (),
        changelog: bool | None = None,
    ) -> RemoteGrouping:  # fmt: skip
        """Groups for remote aggregates: `remote.group_by(df, "shop").agg(my_avg("price"), F.sum("price"))`.

        Without keys there is one group, and one row of output even for an empty frame. With `order_by` a
        function gets the rows of a key in that order (columns, expressions, sort directions);
        `F.monotonically_increasing_id()` is the order of the frame. A frame with a column `row_kind` (+I, -U,
        +U, -D) or Delta's `_change_type` is a changelog unless `changelog` says otherwise: rows are retracted
        by functions that can, and keys that have none left are not in the result.
        """
        order = [order_by] if isinstance(order_by, (str, Column)) else list(order_by)
        return RemoteGrouping(frame, keys, None, order, changelog)

    def rollup(self, frame: DataFrame, *keys: str | Column) -> RemoteGrouping:
        """As DataFrame.rollup: groups by all keys, by all but the last, and so on, and by none."""
        sets = [tuple(range(count)) for count in range(len(keys), -1, -1)]
        return RemoteGrouping(frame, keys, sets)

    def cube(self, frame: DataFrame, *keys: str | Column) -> RemoteGrouping:
        """As DataFrame.cube: groups by every combination of keys."""
        count = len(keys)
        sets = [tuple(i for i in range(count) if mask >> i & 1) for mask in range(2**count - 1, -1, -1)]
        return RemoteGrouping(frame, keys, sets)

    def grouping_sets(
        self, frame: DataFrame, sets: Sequence[Sequence[str | Column]], *keys: str | Column
    ) -> RemoteGrouping:
        """As DataFrame.groupingSets: groups by each of the sets; `keys` are all columns of the result, in order.

        Raises PlanError for a column of a set that is none of the keys.
        """
        identifiers = identifiers_of(self.spark)
        return RemoteGrouping(frame, keys, [positions_of(chosen, keys, identifiers) for chosen in sets])

    def register(self, *names: str, prefix: str = "", **options: Unpack[ScalarCallOptions]) -> list[str]:
        """Makes functions known to SQL and returns the names they got there.

        Without names, all scalar functions: the highest version as `name`, and every version as `name@version`
        (in SQL: `` `name@2`(x) ``). Aggregates are called through `sql`. `prefix` is put before each name.
        Options are call options and are fixed by the registration. Raises UnknownFunction, or PlanError for a
        function SQL cannot call.
        """
        scalars = [spec for spec in self._functions if spec.kind is FunctionKind.SCALAR]
        wanted = list(names) or [
            name for spec in scalars for name in (spec.key, *([spec.name] if self._is_chosen(spec) else ()))
        ]
        registered = [register_function(self._function(name, options), prefix + name) for name in wanted]
        self._registered |= {name.casefold(): options for name in registered}
        return registered

    def sql(self, text: str, args: Parameters = None, **fields: object) -> DataFrame:
        """Runs Spark SQL in which remote functions are called as Spark's own; `args` and `fields` as in `spark.sql`.

        `SELECT shop, my_avg(price) FILTER (WHERE price > 0) FROM sales GROUP BY ROLLUP (shop)`: remote
        aggregates stand in GROUP BY and in OVER, in subqueries, common table expressions and temporary views.
        Scalar functions become known to Spark by their names. A version is chosen with `` `my_avg@2`(x) ``,
        and so is a remote function that has the name of a built-in one.

        A table with a column `row_kind` or `_change_type` is a changelog to remote aggregates, as in
        `group_by`, unless the query itself names that column outside of WHERE. Everything this end does not
        know is left to Spark. Raises PlanError with line and column, UnknownFunction, and what Spark raises.
        """
        return run_text(self._sql_functions(), Text(text, args, fields))

    def explain(self, text: str, args: Parameters = None, **fields: object) -> Explanation:
        """What `sql` makes of a query, as text; the query is planned and not run, that of an INSERT or CREATE alone.

        A line per stage, from the inside out: window functions, aggregates and where each is computed, the
        shapes that were recognised on a stream, or why one was not, process table functions. Then a line per
        scalar function, read from Spark's plan: calls per row, order of the output, conditions that run before.
        Then Spark's own plan. Raises as `sql`.
        """
        stages: list[str] = []
        query = query_of(Text(text, args, fields))
        functions = self._sql_functions()
        frame = run_text(functions, query, stages)
        plan = plan_of(frame)
        scalars = functions.of_kind(FunctionKind.SCALAR, query.called)
        lines = [*dict.fromkeys(stages), *scalar_stages(plan, scalars, query.called)] or ["all of it is left to Spark"]
        return Explanation("\n".join([*(f"{number}. {line}" for number, line in enumerate(lines, 1)), "", plan]))

    def _sql_functions(self) -> SqlFunctions:
        return SqlFunctions(self.spark, self._functions, self._registered, self._function, self.process)

    def with_columns(
        self, frame: DataFrame, calls: Mapping[str, Column | OverExpression], **options: Unpack[ScalarCallOptions]
    ) -> DataFrame:
        """`frame` with a column per call: `remote.with_columns(df, {"where": geocode("address")})`.

        All calls of a row are under way together, and equal calls of a row are made once. Calls may be
        nested. Options are for all calls that do not set them, error policies among them; with
        `output_mode="unordered"` rows leave as they complete. With `on_error="column"` a column
        `<name>_error` of `struct<code, message, attempts, retryable>` follows each call's; with
        `"dead-letter"` rows with a failed call go to Parquet files under the directory `dead_letter`,
        and not into the result; `replay` reads them. Works on streams as well.

        Raises PlanError, InvalidOption or UnsupportedType.
        """
        overs = {name: call for name, call in calls.items() if isinstance(call, OverExpression)}
        if overs and options:
            raise PlanError("options of an aggregate over a window are set with `with_options` of its function")
        if overs and len(overs) == len(calls):
            return add_over(frame, overs)
        return plan_with_columns(self.spark, self.config, frame, calls, options)

    def select(
        self, frame: DataFrame, *columns: str | Column | OverExpression, **options: Unpack[ScalarCallOptions]
    ) -> DataFrame:
        """The given columns, calls among them: `remote.select(df, "id", geocode("address").alias("where"))`.

        As `with_columns` in everything else.
        """
        wide, chosen = select_over(frame, columns)
        return plan_select(self.spark, self.config, wide, chosen, options)

    def replay(self, path: str, *, run: str | None = None) -> DataFrame:
        """The rows of dead letters as they were, to be called again: `remote.with_columns(remote.replay(path), ...)`.

        `path` is the `dead_letter` directory as Spark writes it. `run` is one of the letters' column `_run`: for a
        stream the id of its query. It may be left out if the directory has letters of one run only. The rows are
        those that were there when this was called, so new letters may go to the same directory.

        Raises PlanError if there are no letters, or of several runs, which the message lists.
        """
        return replayed(self.spark, path, run)

    def process(
        self, name: str, tables: DataFrame | Mapping[str, DataFrame] | None = None, *,
        partition_by: Names | ByTable[Names] = None,
        order_by: Names | ByTable[Names] = (), on_time: str | Sequence[str] = (),
        uid: str | None = None, changelog_mode: Mode | ByTable[Mode] = None,
        upsert_key: Names | ByTable[Names] = (), options: ProcessCallOptions | Mapping[str, object] | None = None,
        **arguments: object,
    ) -> DataFrame:  # fmt: skip
        """The result of a process table function: `remote.process("sessions", df, partition_by="user", on_time="ts")`.

        Several tables are passed by argument, `{"orders": df, "payments": df2}`, and so are `partition_by`,
        `order_by` and `changelog_mode` where they differ. `order_by` takes names, perhaps with `DESC` and
        `NULLS LAST`, the first of which is a time. `on_time` names the column of the time in each table.
        `arguments` are the scalar arguments. A table with a column `row_kind` or `_change_type` is a changelog;
        `changelog_mode` says of which kinds. One without -U is completed where the function asks for them, by the row
        before it of the same `upsert_key`, which is `partition_by` unless given.

        Columns of the result: the key of each table, or all columns of one that is passed through; the function's
        own; `rowtime` with `on_time`; `row_kind` if the function emits changes. In batch the end of the input is
        a watermark at the end of time: all timers fire. Raises PlanError, InvalidOption or UnsupportedType.
        """
        spec = self._functions.find(name)
        if spec.kind is not FunctionKind.PROCESS:
            raise PlanError(f"function {spec.key} is a function of kind {spec.kind}, not a process table function")
        inputs = inputs_of(spec, tables, partition_by=partition_by, order_by=order_by, changelog_mode=changelog_mode)
        inputs = normalised_inputs(spec, inputs, upsert_key)
        return plan_process(
            self.spark, self.config, spec, inputs, scalars=arguments, on_time=names_of(on_time, "on_time"), uid=uid,
            options=options or {}, uids=self._uids,
        )  # fmt: skip

    def summary(self, *, progress: bool | float = False) -> JobSummary:
        """What this session's calls do inside a `with` block: `with remote.summary() as summary: df.write...`.

        Every Spark job that runs meanwhile counts, whichever thread started it. With `progress` a line
        is printed to standard error every ten seconds, or so many. Raises SummaryUnavailable on Spark Connect,
        unless `connect` was given a `summary_directory`.
        """
        require_reports(self.config.reporter)
        return JobSummary(self.spark, context_of(self.spark), self._collector, progress)

    def __repr__(self) -> str:
        connected = how_connected(self.config)
        return f"<remote session with {self.config.target} ({connected}), {len(self._functions)} functions>"

    def _repr_html_(self) -> str:
        facts = {"embedded": "started here"} if self.embedded is not None else {}
        return session_html(self.config, self.functions(), facts)

    def _is_chosen(self, spec: FunctionSpec) -> bool:
        return self._functions.versions[spec.name] == spec.version
