"""All Prometheus metrics of the server.

Labels come from the registry, from enums and from the access file, and units are counted up to a number, so the number
of series is bounded. Of a function, only the counters that alerts and rules read exist from the start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics

from remote_udf.amounts import MOST_UNITS, OTHER
from remote_udf.errors import ErrorCode
from remote_udf.version import __version__
from udf_server.base.metric_kinds import BulkHistogram, Series
from udf_server.base.output import DroppedLines

__all__ = ["FunctionMetrics", "ServerMetrics"]

disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more for each counter, which nothing here reads

LATENCY_BUCKETS = (0.001, 0.01, 0.1, 1.0, 10.0, 300.0)
"""For quantiles of rules and dashboard. The largest one is longer than the default deadline of three minutes."""
WAIT_BUCKETS = (0.1, 1.0, 10.0)
"""For the wait of a batch. The alert is at a second."""
LAG_BUCKETS = (0.001, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 10.0)
FUNCTION = ("function", "version")


MetricT = TypeVar("MetricT")


class _Metric(Generic[MetricT]):
    """A row of the table ServerMetrics: how the metric of a server is made."""

    def __init__(
        self,
        kind: Callable[..., MetricT],
        *arguments: object,
        first: Iterable[Sequence[str]] = (),
        each: Iterable[Sequence[str]] = (),
        **more: object,
    ) -> None:
        """Declare a metric of this kind.

        Args:
            kind: Called with the arguments.
            *arguments: The name, the documentation and the labels.
            first: Labels of series that begin at 0. If a counter appears with its first event, its rate lacks that
                event, and some have only one.
            each: Of a metric of functions, the further labels of series that begin at 0 for each function. Only what
                alerts and rules read has them, because they are all that a scrape has of a function that is not called.
            **more: Further arguments, such as `buckets`.
        """
        self._kind, self._arguments, self._first, self._more = kind, arguments, first, more
        self.each = tuple(each)

    @property
    def labels(self) -> Sequence[str]:
        return cast("Sequence[str]", self._arguments[2]) if len(self._arguments) > 2 else ()

    def made(self, registry: CollectorRegistry) -> MetricT:
        metric = self._kind(*self._arguments, registry=registry, **self._more)
        for labels in self._first:
            metric.labels(*labels)  # type: ignore[attr-defined]
        return metric

    def __get__(self, server: "ServerMetrics", kind: type) -> MetricT:
        """For type checkers: a server's own attribute has the same name and comes first."""
        raise AttributeError("a metric belongs to an object of ServerMetrics")


class ServerMetrics:
    """The table of all metrics. An object has those of one server, in a separate registry."""

    info = _Metric(Gauge, "udf_server_info", "Always 1; the label is the version of the server.", ("version",))
    device = _Metric(
        Gauge, "udf_device_info", "Always 1; the label is the device of the process, of the setting devices.",
        ("device",),
    )  # fmt: skip
    ready = _Metric(Gauge, "udf_server_ready", "1 while the server accepts new streams.")
    streams = _Metric(Gauge, "udf_streams_open", "Open streams.", FUNCTION)
    streams_total = _Metric(Counter, "udf_streams_total", "Ended streams, by the way they ended.", (*FUNCTION, "end"))
    streams_shared_memory = _Metric(
        Counter, "udf_streams_shared_memory_total", "Streams that share memory with a caller on the same host.",
        FUNCTION,
    )  # fmt: skip
    rejected = _Metric(
        Counter, "udf_streams_rejected_total", "Streams refused before a function was called, by code.",
        ("code",), first=[(ErrorCode.OVERLOADED,)],
    )  # fmt: skip
    rows = _Metric(Counter, "udf_rows_total", "Rows with an outcome: ok, failed or skipped.", (*FUNCTION, "outcome"),
                   each=[("ok",), ("failed",)])  # fmt: skip
    row_errors = _Metric(
        Counter, "udf_row_errors_total", "Rows that failed, by code.", (*FUNCTION, "code"),
        each=[(ErrorCode.FUNCTION_ERROR,)],
    )  # fmt: skip
    rows_in_flight = _Metric(Gauge, "udf_rows_in_flight", "Rows received and not yet answered.", FUNCTION)
    load = _Metric(
        Gauge, "udf_load",
        "What clients are told to choose a server: the busy share of the cores or of the most crowded function, plus "
        "the seconds for which messages wait for a call. Above 1 work waits.",
    )  # fmt: skip
    held_bytes = _Metric(
        Gauge, "udf_held_bytes", "Bytes that all streams hold, of max_server_bytes: unanswered rows and unread results."
    )
    result_bytes = _Metric(Gauge, "udf_result_bytes", "Bytes of results that clients have not read.", FUNCTION)
    result_waits = _Metric(
        Counter, "udf_result_waits_total", "Times that the function waited because results were not read.", FUNCTION
    )
    calls = _Metric(
        Counter, "udf_calls_total",
        "Calls of the function: for a row, for a batch if it is vectorized, or for a bundle. Retries count; calls "
        "whose rows had no answer when their client was lost do not, though udf_spent_total has what they spent.",
        FUNCTION, each=[()],
    )  # fmt: skip
    retries = _Metric(
        Counter, "udf_retries_total", "Calls that repeat a failed call, because of retry-strategy.", FUNCTION, each=[()]
    )
    spent = _Metric(
        Counter, "udf_spent_total",
        "What calls have spent, as context.spend reports it, by unit and authenticated caller.",
        (*FUNCTION, "caller", "unit"),
    )  # fmt: skip
    calls_lost = _Metric(Gauge, "udf_calls_lost", "Calls that were given up and have not returned.", FUNCTION)
    turns_waiting = _Metric(
        Gauge, "udf_turns_waiting",
        "Workers of streams that wait for their turn: on the function's event loop, or for one of its threads.",
        FUNCTION,
    )  # fmt: skip
    crowded = _Metric(
        Counter, "udf_crowded_seconds_total",
        "Time in which rows or calls of the function waited because all threads, turns or instances that could serve "
        "them were busy. It grows by 1 per second while more servers would help; waiting for a guard is not counted.",
        FUNCTION,
    )  # fmt: skip
    threads_allowed = _Metric(
        Gauge, "udf_threads_allowed",
        "Threads that a function may use: threads_per_function, or fewer while it only computes.", FUNCTION,
    )  # fmt: skip
    call_rows = _Metric(
        Summary, "udf_call_rows", "Rows per call that has rows of several streams (max-queue-delay).", FUNCTION
    )
    queue_delay = _Metric(
        BulkHistogram, "udf_queue_delay_seconds", "Time that rows waited for such a call, per row.",
        FUNCTION, buckets=LATENCY_BUCKETS,
    )  # fmt: skip
    hedges = _Metric(
        Counter, "udf_hedges_total", "Second calls of slow calls: sent, won (the first to answer) or wasted.",
        (*FUNCTION, "outcome"),
    )  # fmt: skip
    rows_replayed = _Metric(
        Counter, "udf_rows_replayed_total", "Rows that were sent again because their server was lost.", FUNCTION,
        each=[()],
    )  # fmt: skip
    batches = _Metric(Counter, "udf_batches_total", "Batches received.", FUNCTION)
    bytes = _Metric(Counter, "udf_bytes_total", "Payload bytes.", (*FUNCTION, "direction"))
    row_duration = _Metric(
        BulkHistogram, "udf_row_duration_seconds",
        "Time of a row from its turn to its outcome, retries included; a vectorized call counts for each row.",
        FUNCTION, buckets=LATENCY_BUCKETS,
    )  # fmt: skip
    batch_duration = _Metric(
        Summary, "udf_batch_duration_seconds", "Time from a batch's arrival to its last result.", FUNCTION
    )
    batch_wait = _Metric(
        Histogram, "udf_batch_wait_seconds", "Time that a batch waited for capacity in its stream.",
        FUNCTION, buckets=WAIT_BUCKETS,
    )  # fmt: skip
    loop_lag = _Metric(
        Histogram, "udf_event_loop_lag_seconds", "Delay of callbacks on the server's own event loop.",
        buckets=LAG_BUCKETS,
    )  # fmt: skip
    bundle_rows = _Metric(
        Summary, "udf_bundle_rows",
        "Rows per bundle (a call of an aggregate or process table function); failed bundles do not count.", FUNCTION,
    )  # fmt: skip
    bundle_segments = _Metric(
        Summary, "udf_bundle_segments", "Segments (keys) per bundle; failed bundles do not count.", FUNCTION
    )
    applied_rows = _Metric(
        Counter, "udf_applied_rows_total", "Applied rows of segments, by change: accumulate or retract.",
        (*FUNCTION, "change"),
    )  # fmt: skip
    merged_accumulators = _Metric(
        Counter, "udf_merged_accumulators_total", "Accumulators that were merged with others of their key.", FUNCTION
    )
    emitted_rows = _Metric(Counter, "udf_emitted_rows_total", "Rows that a process table function emitted.", FUNCTION)
    timers_fired = _Metric(
        Counter, "udf_timers_fired_total", "Timers of a process table function that fired.", FUNCTION
    )
    state_bytes = _Metric(
        Counter, "udf_state_bytes_total", "Bytes of state and timers received and sent with segments.",
        (*FUNCTION, "direction"),
    )  # fmt: skip
    concurrency_limit = _Metric(
        Gauge, "udf_concurrency_limit", "Concurrent calls that a function's guard allows in this process.", FUNCTION
    )
    circuit_open = _Metric(
        Gauge, "udf_circuit_open", "1 while a function's guard makes no calls in this process, or only one test call.",
        FUNCTION,
    )  # fmt: skip
    circuit_refusals = _Metric(
        Counter, "udf_circuit_refusals_total", "Calls that were not made because the circuit was open.", FUNCTION
    )
    rate_waits = _Metric(
        Counter, "udf_rate_waits_total", "Calls that waited for their function's rate limit.", FUNCTION
    )
    coordination_seconds = _Metric(
        Summary, "udf_coordination_seconds",
        "Time of a claim for the shared limits of a guard, by outcome: ok or failed.", ("outcome",),
        first=[("ok",), ("failed",)],
    )  # fmt: skip
    cache_rows = _Metric(
        Counter, "udf_cache_rows_total",
        "Rows of calls with a cache: hit, miss (called), shared (outcome of an equal row in flight), late (timed out "
        "while they waited for one), or uncached (called, because their arguments have no key).",
        (*FUNCTION, "outcome"),
    )  # fmt: skip
    cache_errors = _Metric(
        Counter, "udf_cache_errors_total",
        "What the cache could not do, by reason: get, put, claim or release failed; unavailable: not tried, as it has "
        "just failed; queue: too many entries wait to be written; large: an entry has too many bytes; entry: an entry "
        "is damaged.",
        ("reason",),
        first=[(why,) for why in ("get", "put", "claim", "release", "unavailable", "queue", "large", "entry")],
    )  # fmt: skip
    cache_bytes = _Metric(Gauge, "udf_cache_bytes", "Bytes of the in-memory cache.")
    cache_orphans = _Metric(
        Gauge, "udf_cache_orphaned_rows",
        "Rows whose calls go on although their stream was lost; their values are kept.",
    )  # fmt: skip
    cache_queue_bytes = _Metric(
        Gauge, "udf_cache_queue_bytes", "Bytes of outcomes that wait to be written to the cache."
    )
    cache_seconds = _Metric(
        Histogram, "udf_cache_seconds", "Time of an operation of the cache's store: get, put, claim or release.",
        ("operation",), buckets=LATENCY_BUCKETS,
    )  # fmt: skip
    loop_blocked = _Metric(
        Counter, "udf_function_loop_blocked_total",
        "Times that a function blocked its event loop for half a second. Time without CPU time for the process does "
        "not count.", FUNCTION, each=[()],
    )  # fmt: skip
    relayed = _Metric(
        Counter, "udf_relayed_streams_total",
        "Streams that a process of the default group passed on to another group of its server.", ("target_group",),
    )  # fmt: skip
    caller_streams = _Metric(
        Gauge, "udf_caller_streams_open", "Open streams of a caller that the setting `callers` names.", ("caller",)
    )
    caller_in_flight = _Metric(
        Gauge, "udf_caller_rows_in_flight", "Rows of such a caller that were received and not yet answered.",
        ("caller",),
    )  # fmt: skip
    caller_rows = _Metric(Counter, "udf_caller_rows_total", "Rows of such a caller with an outcome.", ("caller",))
    caller_budget = _Metric(
        Gauge, "udf_caller_budget_used_ratio",
        "Part of its budget of the day (UTC) that such a caller has spent, on all servers that count together.",
        ("caller", "unit"),
    )  # fmt: skip
    lines_dropped = _Metric(DroppedLines)
    file_reloads = _Metric(
        Counter, "udf_file_reloads_total", "Reloads of changed TLS or access files, by outcome.",
        ("files", "outcome"), first=[("tls", "ok"), ("tls", "failed"), ("access", "ok"), ("access", "failed")],
    )  # fmt: skip

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        for name, declared in vars(ServerMetrics).items():
            if isinstance(declared, _Metric):
                setattr(self, name, declared.made(self.registry))
        self.info.labels(__version__).set(1)
        self.last_errors: dict[tuple[str, str, str], tuple[str, str]] = {}
        """The caller and the text of the last failed row, by function, version and code."""
        self._callers: frozenset[str] = frozenset()
        self._functions: dict[tuple[str, str], FunctionMetrics] = {}
        self._estimates: ServerMetrics | None = None

    def reloads(self, files: str, good: bool) -> None:
        """Count a reload of files, or a failed one. `files` is tls or access. Safe to call from any thread."""
        self.file_reloads.labels(files, "ok" if good else "failed").inc()

    def coordinated(self, seconds: float, good: bool) -> None:
        """Count a claim for shared limits."""
        self.coordination_seconds.labels("ok" if good else "failed").observe(seconds)

    def name_callers(self, callers: Mapping[str, Iterable[str]]) -> None:
        """Count for these callers, with the units of their budgets. Others may be any number of addresses."""
        self._callers = frozenset(callers)
        for name, units in callers.items():
            self.caller_rows.labels(name)
            self.caller_holds(name, 0, 0)
            for unit in units:
                self.caller_budget.labels(name, unit)

    def caller_holds(self, caller: str, streams: int, rows: int) -> None:
        """Show what a named caller holds."""
        self.caller_streams.labels(caller).set(streams)
        self.caller_in_flight.labels(caller).set(rows)

    def caller_answered(self, caller: str) -> Callable[[int], object]:
        """What to call with a number of rows of the caller that were answered."""
        return self.caller_rows.labels(caller).inc if caller in self._callers else lambda rows: None

    def function(self, name: str, version: str, *, estimates: bool = False) -> "FunctionMetrics":
        """The metrics of one function. Those of `estimates`, which call nothing, are in no series of the server."""
        if estimates:
            self._estimates = self._estimates or ServerMetrics()
            return self._estimates.function(name, version)
        labels = (name, version)
        if labels not in self._functions:
            self._functions[labels] = FunctionMetrics(self, labels)
        return self._functions[labels]


class FunctionMetrics:
    """The metrics that the streams of one function report. Series appear with their first use, unless they begin at 0.

    All methods are safe to call from any thread.
    """

    streams = Series("streams")
    shared_memory = Series("streams_shared_memory")
    """Counts streams that share memory with their caller."""
    crowded = Series("crowded")
    """Counts the seconds in which rows or calls waited because all that could serve them was busy."""
    _calls = Series("calls")
    _retries = Series("retries")
    _result_waits = Series("result_waits")
    _batches = Series("batches")
    _replayed = Series("rows_replayed")
    rows_in_flight = Series("rows_in_flight")
    _batch_wait = Series("batch_wait")
    batch_duration = Series("batch_duration")
    _bytes_in = Series("bytes", "in")
    _bytes_out = Series("bytes", "out")
    _ok = Series("rows", "ok")
    _failed = Series("rows", "failed")
    _skipped = Series("rows", "skipped")

    def __init__(self, server: ServerMetrics, labels: tuple[str, str]) -> None:
        self.server, self.labels = server, labels
        for name, declared in vars(ServerMetrics).items():
            for more in declared.each if isinstance(declared, _Metric) else ():
                getattr(server, name).labels(*labels, *more)
        self._shown: set[str] = set()
        self._units: set[str] = set()

    def show(self, gauge: str, value: float) -> None:
        """Set a gauge of ServerMetrics. It appears once the value is not 0."""
        if value or gauge in self._shown:
            self._shown.add(gauge)
            getattr(self.server, gauge).labels(*self.labels).set(value)

    def results_waited(self) -> None:
        """Count that the function waits because its results are not read."""
        self._result_waits.inc()

    def observe_rows(self, seconds: Sequence[float], counts: Sequence[int]) -> None:
        """Add durations of rows, each the number of times that `counts` gives."""
        self.server.row_duration.observe(self.labels, seconds, counts)

    def hedged(self, outcome: str) -> None:
        """Count a hedge by its outcome."""
        self.server.hedges.labels(*self.labels, outcome).inc()

    def merged(self, waited: Sequence[float], counts: Sequence[int]) -> None:
        """Count a call with rows of several streams: how long rows have waited, and the number of rows of each time."""
        self.server.call_rows.labels(*self.labels).observe(sum(counts))
        self.server.queue_delay.observe(self.labels, waited, counts)

    def stream_ended(self, end: str) -> None:
        """Count the end of a stream. `end` is finished, cancelled, failed or disconnected."""
        self.streams.dec()
        self.server.streams_total.labels(*self.labels, end).inc()

    def batch_received(self, rows: int, size: int, waited: float, *, again: bool = False) -> None:
        """Count a batch. `waited` is the time it waited for room; `again` means that another server had its rows."""
        self._batches.inc()
        if again:
            self._replayed.inc(rows)
        self.rows_in_flight.inc(rows)
        self._batch_wait.observe(waited)
        self._bytes_in.inc(size)

    def rows_answered(self, ok: int, failed: int, skipped: int, size: int) -> None:
        self.rows_in_flight.dec(ok + failed + skipped)
        self._ok.inc(ok)
        if failed:
            self._failed.inc(failed)
        if skipped:
            self._skipped.inc(skipped)
        self._bytes_out.inc(size)

    def called(self, calls: int, retries: int) -> None:
        """Count calls that led to answered rows, and the retries among them."""
        self._calls.inc(calls)
        if retries:
            self._retries.inc(retries)

    def spent(self, caller: str, amounts: Mapping[str, float]) -> None:
        """Count what a call for this caller has spent, by unit."""
        for unit, amount in amounts.items():
            if unit not in self._units and len(self._units) >= MOST_UNITS:
                unit = OTHER
            self._units.add(unit)
            self.server.spent.labels(*self.labels, caller, unit).inc(amount)

    def cached(self, hits: int, misses: int, shared: int) -> None:
        """Count answered rows of a call with a cache."""
        for outcome, count in (("hit", hits), ("miss", misses), ("shared", shared)):
            self.server.cache_rows.labels(*self.labels, outcome).inc(count)

    def not_cached(self, outcome: str, rows: int) -> None:
        """Count rows that have no key in the cache (uncached), or timed out while they waited for equal rows (late)."""
        if rows:
            self.server.cache_rows.labels(*self.labels, outcome).inc(rows)

    def rows_failed(self, code: str, count: int, caller: str, text: str) -> None:
        """Count rows of a caller that failed with this code, and keep the text of the last one."""
        self.server.row_errors.labels(*self.labels, code).inc(count)
        self.server.last_errors[*self.labels, code] = caller, text
