"""RemoteSession: the functions of one server in one Spark session."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, Unpack, overload

from pyspark.sql import Column, DataFrame, SparkSession

from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.option_types import AggregateCallOptions, CallOptions, ProcessCallOptions, ScalarCallOptions
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import identifiers_of
from spark_client.base.notebooks import Explanation, FunctionList, how_connected, session_html
from spark_client.base.options import note_functions, options_of
from spark_client.base.settings import planning, read_once
from spark_client.embedded import EmbeddedServer
from spark_client.functions.aggregate import OverExpression, RemoteAggregate
from spark_client.functions.directory import Functions
from spark_client.functions.registration import register_function, register_table_function, why_unregistered
from spark_client.functions.scalar import AnyFunction, RemoteFunction, SparkFunction
from spark_client.planning.aggregate.grouping import RemoteGrouping, positions_of
from spark_client.planning.dead_letters import replayed
from spark_client.planning.over import add_over, computed_over, select_over
from spark_client.planning.process.inputs import ByTable, Mode, Names, TableOptions
from spark_client.planning.process.planner import plan_process
from spark_client.planning.process.upstream import StreamUids
from spark_client.planning.rows.planner import How, plan_lateral_join, plan_select, plan_with_columns
from spark_client.planning.scans import selected
from spark_client.sql.queries import SqlQueries
from spark_client.sql.rows.functions import SqlSession
from spark_client.sql.text.parsing import Parameters, Text
from spark_client.summary.collector import Collector, context_of, require_reports
from spark_client.summary.job_summary import JobSummary
from spark_client.summary.live_rows import LiveRows

if TYPE_CHECKING:
    from spark_client.models.calibration import Agree
    from spark_client.models.cascade import Cascade
    from spark_client.models.estimate import Estimate
    from spark_client.parquet.writing import Mode as WriteMode
    from spark_client.parquet.writing import ParquetFile

__all__ = ["RemoteSession"]


class RemoteSession:
    """The functions of a server, with the types and versions that they had when `connect` was called.

    Of plugins that an embedded server or `udf-server dev` serves while they are edited, with those that they have now.
    """

    def __init__(
        self, spark: SparkSession, config: ClientConfig, functions: Functions,
        embedded: EmbeddedServer | None = None, collector: Collector | None = None, condition_sample: int = 0,
        list_again: Callable[[], Functions] | None = None,
    ) -> None:  # fmt: skip
        """`list_again` returns the functions as they are now. It is called if the server takes over edits of them."""
        self.spark = spark
        self.config = config
        self.embedded = embedded
        """The embedded server, if `connect` started or found one."""
        self._collector = collector or Collector()
        self._functions, self._list_again = functions, list_again
        note_functions(functions)
        self._uids = StreamUids()
        self._planned: dict[object, SparkFunction] = {}
        context = context_of(spark)
        tasks = None if context is None else context.defaultParallelism
        self._queries = SqlQueries(SqlSession(
            spark, functions, self._function, self._process, self._collector.cost_of, tasks, condition_sample
        ))  # fmt: skip

    def functions(self) -> FunctionList:
        """Every version of every function, sorted by name and version. A notebook shows the list as a table.

        For a function whose versions have weights, the list says which share of the jobs gets each version, and which
        version this session has got.
        """
        functions = self._current()
        return FunctionList(functions, functions.jobs())

    def _current(self) -> Functions:
        """The functions, listed again at most once per query if their code may have been edited."""
        if self._functions.code and self._list_again is not None:
            read_once(self.spark, self._take_edits)
        return self._functions

    def _take_edits(self, spark: SparkSession) -> None:
        assert self._list_again is not None
        functions = self._list_again()
        if functions.code != self._functions.code:
            note_functions(functions)
            self._functions.replace(functions)

    def _spec_of(self, name: str) -> FunctionSpec:
        return self._current().find(name)

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
        """Look up a function, such as `remote.function("geocode", timeout="2 s")`.

        Args:
            name: "name" for the highest version, or "name@version".
            kind: The expected kind. If it is given, editors and type checkers know the type of the result.
            **options: Call options, which take precedence over all others.

        Returns:
            A RemoteFunction for a scalar function, a RemoteAggregate for an aggregate function.

        Raises:
            UnknownFunction: The server has no such function; the message lists the functions that it has.
            PlanError: The function is of another kind, or `name` is a Python function.
        """
        if not isinstance(name, str):
            raise PlanError(
                f"remote.function takes the name of a function of the server, not {name!r}: write the function in a "
                'plugin, and connect(spark, plugins=["my_udfs.py"]) or a server with --plugin my_udfs.py has it'
            )
        function = self._function(name, options)
        if kind is not None and function.spec.kind != kind:
            raise PlanError(f"function {function.spec.key} is of kind {function.spec.kind}, not {kind}")
        return function

    def _function(self, name: str, options: Mapping[str, object]) -> RemoteFunction | RemoteAggregate:
        look_up = partial(self._spec_of, name)
        spec = look_up()
        if spec.kind is FunctionKind.AGGREGATE:
            return RemoteAggregate(spec, self.spark, self.config, options, look_up)
        if spec.kind is FunctionKind.PROCESS:
            raise PlanError(f"function {spec.key} is a process table function: call it by remote.process or in SQL")
        return RemoteFunction(spec, self.spark, self.config, options, self._planned, look_up)

    def group_by(
        self, frame: DataFrame, *keys: str | Column, order_by: Sequence[str | Column] | str | Column = (),
        changelog: bool | None = None,
    ) -> RemoteGrouping:  # fmt: skip
        """Group rows for remote aggregates: `remote.group_by(df, "shop").agg(my_avg("price"), F.sum("price"))`.

        A frame with a column `row_kind` (+I, -U, +U, -D) or Delta's `_change_type` is a changelog: -U and -D retract
        rows, and a key whose rows were all retracted is not in the result.

        Args:
            frame: A table or a stream.
            *keys: Names of columns, or expressions. Without keys there is one group, also for an empty frame.
            order_by: The order of the rows of a key: columns, expressions, sort directions.
            changelog: False treats the frame as a plain table, True requires a changelog.

        Returns:
            The groups, whose method `agg` returns a DataFrame.
        """
        order = [order_by] if isinstance(order_by, (str, Column)) else list(order_by)
        return RemoteGrouping(frame, keys, None, order, changelog)

    def rollup(self, frame: DataFrame, *keys: str | Column) -> RemoteGrouping:
        """Group by all keys, by all but the last, and so on, and by none, as DataFrame.rollup does."""
        sets = [tuple(range(count)) for count in range(len(keys), -1, -1)]
        return RemoteGrouping(frame, keys, sets)

    def cube(self, frame: DataFrame, *keys: str | Column) -> RemoteGrouping:
        """Group by every combination of keys, as DataFrame.cube does."""
        count = len(keys)
        sets = [tuple(i for i in range(count) if mask >> i & 1) for mask in range(2**count - 1, -1, -1)]
        return RemoteGrouping(frame, keys, sets)

    def grouping_sets(
        self, frame: DataFrame, sets: Sequence[Sequence[str | Column]], *keys: str | Column
    ) -> RemoteGrouping:
        """Group by each of the sets, as DataFrame.groupingSets does.

        Args:
            frame: A table or a stream.
            sets: The sets of keys.
            *keys: All keys, in the order of the result's columns.

        Raises:
            PlanError: A column of a set is not one of the keys.
        """
        identifiers = identifiers_of(self.spark)
        return RemoteGrouping(frame, keys, [positions_of(chosen, keys, identifiers) for chosen in sets])

    @planning()
    def register(self, *names: str, prefix: str = "", **options: Unpack[CallOptions]) -> list[str]:
        """Register functions as temporary functions of Spark SQL.

        Spark evaluates a registered aggregate with one request per group, as `RemoteAggregate.column` describes. A
        process table function is a table function, `SELECT * FROM f(TABLE(t) PARTITION BY k ORDER BY ts)`, with a
        request per key. Its result has the columns of the function, but not the key.

        Args:
            *names: "name" or "name@version". Without names every version is registered, and the highest as "name" if
                Spark has no function with this name, but no function that Spark SQL cannot call.
            prefix: A prefix for each name in SQL.
            **options: Call options, which the registration fixes. Without names, each applies to the functions that
                have it.

        Returns:
            The names in SQL. Write a version in backticks: `` `name@2`(x) ``.

        Raises:
            UnknownFunction: The server has no such function.
            PlanError: Spark SQL cannot call a function that `names` has; the message says why.
        """
        wanted: dict[str, Mapping[str, object]] = dict.fromkeys(names, options) or {
            name: options_of(spec.kind, options)
            for spec in self._current() if why_unregistered(spec) is None
            for name in (spec.key, *([spec.name] if self._functions.versions[spec.name] == spec.version else ()))
            if name == spec.key or not self._queries.is_built_in(prefix + name)
        }  # fmt: skip
        registered = {self._registered(name, given, prefix + name): given for name, given in wanted.items()}
        self._queries.registered(registered)
        return list(registered)

    def _registered(self, name: str, options: Mapping[str, object], in_sql: str) -> str:
        spec = self._spec_of(name)
        if spec.kind is FunctionKind.PROCESS:
            return register_table_function(self.spark, self.config, spec, options, in_sql)
        return register_function(self._function(name, options), in_sql)

    @planning()
    def sql(self, text: str, args: Parameters = None, **fields: object) -> DataFrame:
        """Run Spark SQL that calls remote functions like Spark's own; anything else is passed to Spark unchanged.

        For example, `SELECT shop, my_avg(price) FILTER (WHERE price > 0) FROM sales GROUP BY ROLLUP (shop)`. Write
        `` `my_avg@2`(x) `` to choose a version, or to call a remote function with the name of a built-in one.

        A table with a column `row_kind` or `_change_type` is a changelog for remote aggregates, as in
        `group_by`, unless the query names that column outside of WHERE.

        Args:
            text: The query or statement.
            args: Parameters, as in `spark.sql`.
            **fields: Values and DataFrames for names in braces, as in `spark.sql`.

        Raises:
            PlanError: The query cannot be planned; the message has line and column.
            UnknownFunction: The server has no such function.
        """
        self._current()
        return self._queries.run(Text(text, args, fields))

    @planning()
    def explain(
        self, text: str | DataFrame, args: Parameters = None, *, estimate: bool = False, **fields: object
    ) -> Explanation:
        """Plan a query as `sql` does, without running it, and describe the plan. Or describe that of a DataFrame.

        For an INSERT or CREATE, it plans the query in the statement.

        Args:
            text: The query or statement, or a DataFrame with remote calls.
            args: Parameters, as in `spark.sql`.
            estimate: Tell the rows, calls, amounts and time that are expected of each call in a text. Spark's part of
                the query runs, and no function is called.
            **fields: Values and DataFrames for names in braces, as in `spark.sql`.

        Returns:
            Text. First it has a line per stage, from the innermost: window functions, aggregates and where each is
            computed, process table functions, and the query shapes that were recognised on a stream, or why none was.
            Then it has a line per scalar function: calls per row, order of the output, conditions that run before it.
            It tells the mean of what this session has measured of the calls of each function. Spark's own plan follows.

        Raises:
            PlanError: The query cannot be planned; the message has line and column.
            UnknownFunction: The server has no such function.
        """
        if isinstance(text, DataFrame) and estimate:
            raise PlanError("explain: an estimate needs the text of a query; use remote.estimate(df, call) for a call")
        self._current()
        if isinstance(text, DataFrame):
            return self._queries.explained_frame(text)
        return self._queries.explained(Text(text, args, fields), estimate=estimate)

    @planning()
    def read_parquet(
        self, *paths: str, columns: str | Sequence[str] | None = None,
        filter: str | None = None,  # noqa: A002 - the name that other readers of Parquet use
    ) -> DataFrame:  # fmt: skip
        """Read Parquet files like `spark.read.parquet`, such that remote calls do not move their rows through the JVM.

        The result is a DataFrame of Spark. If `with_columns`, `select` or `group_by` is applied to it, Spark's Python
        workers read the files themselves, only the columns that are used. If you transform the DataFrame first, or if
        an argument or a key is an expression, Spark reads the files. The rows are the same in both ways.

        Args:
            *paths: Files or directories. The workers need access to them, with the credentials of their environment.
            columns: Names of the columns of the result; by default all.
            filter: A condition in SQL of comparisons of columns with values, IN, BETWEEN, IS NULL, AND, OR and NOT.
                A part of it that is joined by AND may be any expression of partition columns.

        Raises:
            PlanError: The settings of the session require what workers cannot do, or workers cannot check the filter.
        """
        from spark_client.parquet.reading import plan_scan  # noqa: PLC0415 - a side building

        frame = plan_scan(self.spark, paths, filter)
        if columns is None:
            return frame
        return selected(frame, *([columns] if isinstance(columns, str) else columns))

    @planning()
    def write_parquet(
        self, frame: DataFrame, path: str, *, mode: "WriteMode" = "error", partition_by: str | Sequence[str] = (),
        compression: str | None = None, row_group_rows: int = 1_000_000,
    ) -> "list[ParquetFile]":  # fmt: skip
        """Write a DataFrame to Parquet files from Spark's Python workers: `remote.write_parquet(df, "/data/out")`.

        If the frame is the result of `with_columns` or `select`, the worker that makes the calls also writes their
        results, so these rows do not pass through the JVM. All other frames are sent to workers by Spark. Files
        appear only after all have been written; publishing is not atomic, so a reader may then see some of them.

        Args:
            frame: A table.
            path: An absolute path or a URI. All workers need access to it, with the credentials of their environment.
            mode: What to do if the path has files: `error`, `append`, `overwrite` or `ignore`. Overwritten files are
                deleted after the new ones are in place, so the frame may have been read from them. With
                `spark.sql.sources.partitionOverwriteMode=dynamic` only directories that get files are overwritten.
            partition_by: The columns whose values become names of directories, the outermost first.
            compression: `none`, `snappy`, `gzip`, `zstd`, `lz4` or `brotli`; by default that of the Spark session.
            row_group_rows: The maximum number of rows in a row group. A task holds at most 64 MB of rows, so row
                groups may have less.

        Returns:
            The new files; none if the mode is `ignore` and the path has files.

        Raises:
            PlanError: A column, an option or the path cannot be used.
            WriteFailed: The path has files, or another `write_parquet` to it has not ended.
        """
        from spark_client.parquet.writing import WriteOptions, write  # noqa: PLC0415 - a side building

        columns = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        return write(self.spark, frame, path, WriteOptions(mode, columns, compression, row_group_rows))

    @planning()
    def recover_parquet(self, path: str, *, unchanged_for: str = "10 minutes") -> list[str]:
        """End writes of `write_parquet` to a path whose driver was killed.

        If all files of a write are published, they stay, and those that they replace are deleted. Otherwise its files
        are deleted, and those of earlier writes are the result.

        Args:
            path: The path of the writes.
            unchanged_for: A write that has changed something in this time may still run, and is left alone.

        Returns:
            What was done with each write; nothing if all writes to the path have ended.

        Raises:
            PlanError: The path or the time cannot be used.
            WriteFailed: A write to the path may still run.
        """
        from spark_client.parquet.writing import recovered  # noqa: PLC0415 - a side building

        return recovered(self.spark, path, unchanged_for)

    @planning()
    def with_columns(
        self, frame: DataFrame, calls: Mapping[str, Column | OverExpression], **options: Unpack[ScalarCallOptions]
    ) -> DataFrame:
        """Add a column per call: `remote.with_columns(df, {"where": geocode("address")})`.

        All calls of a row run at the same time, and equal calls are made once. Calls may be nested.

        Args:
            frame: A table or a stream.
            calls: The call of each new column, by name. An aggregate over a window may be part of an expression.
            **options: Call options and error policies, for all calls that do not set them.

        Returns:
            The frame with the new columns. With `output_mode="unordered"` rows are emitted as they complete. With
            `on_error="column"` a column `<name>_error`, `struct<code, message, attempts, retryable>`, follows each
            new column and replaces one of that name. With `on_error="dead-letter"` failed rows are written to Parquet
            files in the directory `dead_letter` instead; `replay` reads them.

        Raises:
            PlanError: A call cannot be planned; the message names the column or the argument.
            InvalidOption: An option is unknown or malformed.
            UnsupportedType: A column has a type that cannot be sent to a function.
        """
        overs = {n: call for n, call in calls.items() if isinstance(call, OverExpression) or computed_over([call])}
        if overs and options:
            raise PlanError("options of an aggregate over a window are set with `with_options` of its function")
        if overs and len(overs) == len(calls):
            return add_over(frame, overs)
        return plan_with_columns(self.spark, self.config, frame, calls, options)

    @planning()
    def select(
        self, frame: DataFrame, *columns: str | Column | OverExpression, **options: Unpack[ScalarCallOptions]
    ) -> DataFrame:
        """Select columns and calls: `remote.select(df, "id", geocode("address").alias("where"))`.

        Args:
            frame: A table or a stream.
            *columns: Names of columns, columns, and calls; a call needs an alias or is named after its function.
            **options: Call options and error policies, as for `with_columns`.

        Raises:
            PlanError: A call cannot be planned; the message names the column or the argument.
            InvalidOption: An option is unknown or malformed.
            UnsupportedType: A column has a type that cannot be sent to a function.
        """
        wide, chosen = select_over(frame, columns)
        return plan_select(self.spark, self.config, wide, chosen, options)

    @planning()
    def lateral_join(
        self, frame: DataFrame, call: Column, how: How = "inner", *, names: Sequence[str] | None = None,
        **options: Unpack[ScalarCallOptions],
    ) -> DataFrame:  # fmt: skip
        """Join each row with the rows that a function returns for it: `remote.lateral_join(df, offers("item"))`.

        Args:
            frame: A table or a stream.
            call: The call of a function that returns rows, or an array of structs. Null and an empty array are no rows.
            how: "inner" omits rows of the frame for which the function returns no rows, "left" joins them with nulls.
            names: Other names for the columns of the rows, in order.
            **options: Call options and error policies, as for `with_columns`.

        Returns:
            The columns of the frame, then those of the rows. With `on_error="column"` a column `<function>_error` is
            between them; a row whose call failed appears once, with nulls, whatever `how` is.

        Raises:
            PlanError: The call cannot be planned, or a column would appear twice.
            InvalidOption: An option is unknown or malformed.
            UnsupportedType: A column has a type that cannot be sent to a function.
        """
        return plan_lateral_join(self.spark, self.config, frame, call, how, names, options)

    def replay(self, path: str, *, run: str | None = None) -> DataFrame:
        """Read the original rows of dead letters: `remote.with_columns(remote.replay(path), ...)`.

        The rows are those of the letters that exist now, so you may write new letters to the same directory.

        Args:
            path: The directory given as `dead_letter`, as Spark writes it.
            run: A value of the column `_run`; for a stream the id of its query. Required if there are several runs.

        Raises:
            PlanError: There are no letters, or letters of several runs, which the message lists.
        """
        return replayed(self.spark, path, run)

    @planning()
    def process(
        self, name: str, /, tables: DataFrame | Mapping[str, DataFrame] | None = None, *,
        partition_by: Names | ByTable[Names] = None,
        order_by: Names | ByTable[Names] = (), on_time: str | Sequence[str] = (),
        uid: str | None = None, changelog_mode: Mode | ByTable[Mode] = None,
        upsert_key: Names | ByTable[Names] = (), options: ProcessCallOptions | Mapping[str, object] | None = None,
        **arguments: object,
    ) -> DataFrame:  # fmt: skip
        """Call a process table function: `remote.process("sessions", df, partition_by="user", on_time="ts")`.

        If there are several tables, pass a mapping by argument, `{"orders": df, "payments": df2}`. `partition_by`,
        `order_by`, `changelog_mode` and `upsert_key` may be mappings too. In batch mode all timers fire at the end of
        the input.

        Args:
            name: "name" or "name@version".
            tables: The tables; one with a column `row_kind` or `_change_type` is a changelog.
            partition_by: Names of the columns of the key.
            order_by: Names of columns, the first of which is a time, optionally with `DESC` and `NULLS LAST`.
            on_time: The name of the time column in each table.
            uid: The name of the call's state on a stream; by default the name of the function.
            changelog_mode: The kinds of change of a table.
            upsert_key: The key by which an upsert changelog is completed in batch; by default `partition_by`.
            options: Call options.
            **arguments: The scalar arguments.

        Returns:
            The key of each table, or all columns of a table that is passed through; the columns of the function;
            `rowtime` if `on_time` is given; `row_kind` if the function emits changes.

        Raises:
            PlanError: The call does not match the declaration of the function.
            InvalidOption: An option is unknown or malformed.
            UnsupportedType: A column has a type that cannot be sent to a function.
        """
        of_tables = TableOptions(partition_by, order_by, changelog_mode, upsert_key)
        return self._process(name, tables, arguments, of_tables, on_time=on_time, uid=uid, options=options)

    def _process(
        self, name: str, tables: DataFrame | Mapping[str, DataFrame] | None, scalars: Mapping[str, object],
        of_tables: TableOptions, *, on_time: str | Sequence[str] = (), uid: str | None = None,
        options: ProcessCallOptions | Mapping[str, object] | None = None,
    ) -> DataFrame:  # fmt: skip
        """`process` for SQL, where a scalar argument may have the name of a parameter of `process`."""
        spec = self._spec_of(name)
        if spec.kind is not FunctionKind.PROCESS:
            raise PlanError(f"function {spec.key} is a function of kind {spec.kind}, not a process table function")
        return plan_process(
            self.spark, self.config, spec, tables, of_tables, scalars=scalars, on_time=on_time, uid=uid,
            options=options or {}, uids=self._uids,
        )  # fmt: skip

    def summary(self, *, progress: bool | float = False) -> JobSummary:
        """Count what this session's calls do inside a block: `with remote.summary() as summary: df.write...`.

        Every Spark job that runs during the block counts, whichever thread started it.

        Args:
            progress: True shows a line every ten seconds, a number every n seconds, with the rows that the servers
                have answered so far. A notebook and a terminal redraw it; otherwise lines go to standard error.

        Raises:
            SummaryUnavailable: The session is one of Spark Connect, and `connect` was given no `summary_directory`.
        """
        require_reports(self.config.reporter)
        live = LiveRows.of(self.config) if progress else None
        return JobSummary(
            self.spark, context_of(self.spark), self._collector, progress, live=live, budget=self.config.budget
        )

    @planning()
    def estimate(self, frame: DataFrame, *calls: Column) -> "Estimate":
        """Tell what calls would cost before they are made: `print(remote.estimate(df, complete("prompt")))`.

        Spark runs a query over the frame, and the server applies the `cost` of the function's declaration to the
        arguments. The function is not called. Outcomes that a cache already has are counted like others.

        Args:
            frame: A table.
            *calls: Calls of scalar functions on columns of the frame. Their arguments are computed by Spark.

        Returns:
            The numbers of rows, calls and different calls, and the amounts by unit. That of several calls has the
            sums, and the estimate of each call in `parts`.

        Raises:
            PlanError: There is no call, a column is no remote call, its arguments or its rows need one, the frame is a
                stream, or a call is that of an aggregate or process table function, whose cost is not known before.
        """
        from spark_client.models.estimate import Estimate, estimable, estimated  # noqa: PLC0415 - a side building

        for call in calls or (None,):
            estimable(frame, call)
        parts = [estimated(self.spark, self.config, frame, call, self._queries.calls_in) for call in calls]
        return parts[0] if len(parts) == 1 else Estimate.of_all(parts)

    @planning()
    def cascade(
        self, cheap: RemoteFunction, dear: RemoteFunction, *, target: float, sample: DataFrame,
        value: str = "value", confidence: str = "confidence", confidence_level: float = 0.95,
        agree: "Agree | None" = None,
    ) -> "Cascade":  # fmt: skip
        """Make a function that calls `dear` only for rows of whose value `cheap` is not confident enough.

        For example, `remote.cascade(cheap, dear, target=0.95, sample=df.select("text").orderBy(F.rand(1)).limit(500))`.

        Both functions are called for the sample now, and cost what they cost. Ten thresholds are tried, which answer
        10 %, 20 % ... of the rows. The lowest one is taken for which this holds at the given confidence level: if a row
        is at or above it, the two functions agree with a probability of at least `target`. Each has an exact one-sided
        bound (Clopper and Pearson) with a tenth of the allowed probability of error, because ten are tried. If none
        passes, `dear` is called for every row.

        This promises agreement with `dear`, and not that `dear` is right. It holds on average above the threshold, and
        not for each row or each kind of row, and only for rows that are like the sample. If the data or a model
        changes, make the cascade again.

        Args:
            cheap: A scalar function that returns a struct with a value and a confidence from 0 to 1.
            dear: A scalar function of the same arguments that returns the value, or the same struct.
            target: The least agreement above the threshold, between 0 and 1.
            sample: A table with the arguments as columns, in their order: a random sample of the rows that the cascade
                is for. The message of the error for a sample that is too small says how many rows are needed.
            value: The name of the field with the value.
            confidence: The name of the field with the confidence.
            confidence_level: The probability that the choice of the threshold is right, between 0 and 1.
            agree: Gets the columns of the two values and returns whether they agree, as a column. By default they agree
                if they are equal.

        Returns:
            A function on columns, which also tells what the sample has shown.

        Raises:
            PlanError: A type does not fit, the sample is too small for the target, or a confidence is not from 0 to 1.
        """
        from spark_client.models.calibration import CascadeFields, calibrated  # noqa: PLC0415 - a side building

        fields = CascadeFields(value, confidence)
        cost_of, known = self._collector.cost_of, self._queries.session.cascades
        return calibrated(cheap, dear, sample, fields, target, confidence_level, agree, cost_of, known)

    def cancel(self) -> list[str]:
        """Cancel the queries that this Spark session runs, from another thread than theirs.

        Their tasks end, and within seconds their calls on the servers, which count such streams as `disconnected`. A
        notebook does this for the queries of a cell when you interrupt it. Streaming queries continue: call their own
        method `stop`.

        Returns:
            The ids of the operations that were cancelled.
        """
        return list(self.spark.interruptAll())

    def __repr__(self) -> str:
        connected = how_connected(self.config)
        return f"<remote session with {self.config.target} ({connected}), {len(self._functions)} functions>"

    def _repr_html_(self) -> str:
        facts = {"embedded": "started here"} if self.embedded is not None else {}
        return session_html(self.config, self.functions(), facts)
