"""The Grafana dashboard as code: rows of panels, each with queries of the server's metrics."""

from dataclasses import dataclass
from typing import Any

__all__ = ["dashboard"]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
SERVERS = 'job=~"$job", instance=~"$instance"'
FUNCTIONS = f'{SERVERS}, function=~"$function"'
BY = "sum by (function, version)"
NAME = "{{function}}@{{version}}"
WIDTH, HEIGHT, STAT_HEIGHT = 24, 8, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        # The tooltip shows all functions at one time, the busiest first.
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
}


@dataclass(frozen=True)
class Panel:
    """A panel. `queries` are pairs of PromQL and the legend of its series."""

    title: str
    description: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"


def _rate(metric: str, labels: str = FUNCTIONS) -> str:
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def _quantile(quantile: float, metric: str, by: str = "function, version", labels: str = FUNCTIONS) -> str:
    return f"histogram_quantile({quantile}, sum by ({by}, le) ({_rate(f'{metric}_bucket', labels)}))"


def _per_function(metric: str) -> tuple[tuple[str, str], ...]:
    return ((f"{BY} ({_rate(metric)})", NAME),)


FAILED = 'function=~"$function", outcome="failed"'
OVERVIEW = (
    Panel("Servers ready", "Servers that accept new streams.",
          ((f"sum(max without (group, process) (udf_server_ready{{{SERVERS}}}))", ""),), kind="stat"),
    Panel("Streams", "Open streams: one per running task and call.",
          ((f"sum(udf_streams_open{{{FUNCTIONS}}})", ""),), kind="stat"),
    Panel("Rows", "Rows answered per second.", ((f"sum({_rate('udf_rows_total')})", ""),), "cps", "stat"),
    Panel("Rows in flight", "Rows received and not yet answered.",
          ((f"sum(udf_rows_in_flight{{{FUNCTIONS}}})", ""),), kind="stat"),
    Panel("Failed", "Share of the rows that fail.",
          ((f"sum({_rate('udf_rows_total', f'{SERVERS}, {FAILED}')}) / sum({_rate('udf_rows_total')})", ""),),
          "percentunit", "stat"),
    Panel("Row p99", "99 % of the rows take no longer, retries included.",
          ((f"histogram_quantile(0.99, sum by (le) ({_rate('udf_row_duration_seconds_bucket')}))", ""),), "s", "stat"),
)  # fmt: skip
ROWS = (
    Panel("Rows by outcome", "ok, failed or skipped.",
          ((f"sum by (function, version, outcome) ({_rate('udf_rows_total')})", f"{NAME} {{{{outcome}}}}"),), "cps"),
    Panel("Errors by code", "docs/errors.md explains the codes.",
          ((f"sum by (function, version, code) ({_rate('udf_row_errors_total')})", f"{NAME} {{{{code}}}}"),), "cps"),
    Panel("Calls and retries", "Calls of the function, and how many repeat a failed call, per second.",
          ((f"{BY} ({_rate('udf_calls_total')})", f"{NAME} calls"),
           (f"{BY} ({_rate('udf_retries_total')})", f"{NAME} retries")), "cps"),
    Panel("Rows sent again", "Rows that were sent again because their server was lost.",
          _per_function("udf_rows_replayed_total"), "cps"),
)  # fmt: skip
TIMES = (
    Panel("Row", "From a row's turn to its outcome, retries included.",
          tuple((_quantile(q, "udf_row_duration_seconds"), f"{NAME} p{q * 100:g}") for q in (0.5, 0.99)), "s"),
    Panel("Batch", "From a batch's arrival to its last result, on average.",
          ((f"{BY} ({_rate('udf_batch_duration_seconds_sum')}) / {BY} ({_rate('udf_batch_duration_seconds_count')})",
            NAME),), "s"),
    Panel("Wait for capacity", "Wait of a batch, p99. It rises when the server is full.",
          ((_quantile(0.99, "udf_batch_wait_seconds"), NAME),), "s"),
    Panel("Rows by duration", "Rows per second in each range of durations.",
          ((f"sum by (le) ({_rate('udf_row_duration_seconds_bucket')})", "{{le}}"),), "s", "heatmap"),
)  # fmt: skip
LOAD = (
    Panel("Rows in flight by function", "Unanswered rows; the load of the service behind a function.",
          ((f"{BY} (udf_rows_in_flight{{{FUNCTIONS}}})", NAME),)),
    Panel("Streams by function", "Open now.", ((f"{BY} (udf_streams_open{{{FUNCTIONS}}})", NAME),)),
    Panel("Streams ended", "Ended streams by outcome, and new streams that share memory with their caller.",
          ((f"sum by (end) ({_rate('udf_streams_total')})", "{{end}}"),
           (f"sum({_rate('udf_streams_shared_memory_total')})", "in shared memory")), "cps"),
    Panel("Streams refused", "Before a function was called, by code.",
          ((f"sum by (code) ({_rate('udf_streams_rejected_total', SERVERS)})", "{{code}}"),), "cps"),
    Panel("Unread results", "Bytes of results that clients have not read; a function waits at its limit.",
          ((f"{BY} (udf_result_bytes{{{FUNCTIONS}}})", NAME),), "bytes"),
    Panel("Waits for clients", "Times that a function waited because results were not read, per second.",
          _per_function("udf_result_waits_total"), "cps"),
    Panel("Load of servers", "What clients balance: the busy share plus the seconds that messages wait.",
          ((f"max by (instance) (udf_load{{{SERVERS}}})", "{{instance}}"),)),
    Panel("Streams of servers", "Open streams per server; of like loads, clients balance these.",
          ((f"sum by (instance) (udf_streams_open{{{SERVERS}}})", "{{instance}}"),)),
    Panel("Held bytes", "Bytes of all streams that count towards max_server_bytes.",
          ((f"sum by (instance) (udf_held_bytes{{{SERVERS}}})", "{{instance}}"),), "bytes"),
    Panel("Bytes", "Payload, in and out.",
          ((f"sum by (direction) ({_rate('udf_bytes_total')})", "{{direction}}"),), "Bps"),
    Panel("Crowded", "Share of the time in which rows wait for capacity; if it is high, more servers help.",
          ((f"max by (function, version) ({_rate('udf_crowded_seconds_total')})", NAME),), "percentunit"),
    Panel("Rows per batch", "Small batches cost more per row.",
          ((f"{BY} ({_rate('udf_rows_total')}) / {BY} ({_rate('udf_batches_total')})", NAME),)),
)  # fmt: skip
BUNDLES = (
    Panel("Rows per key", "Rows per segment of a bundle; if it is near 1, bundling gains little.",
          ((f"{BY} ({_rate('udf_bundle_rows_sum')}) / {BY} ({_rate('udf_bundle_segments_sum')})", NAME),)),
    Panel("Keys per bundle", "Segments in one call of the function.",
          ((f"{BY} ({_rate('udf_bundle_segments_sum')}) / {BY} ({_rate('udf_bundle_segments_count')})", NAME),)),
    Panel("Rows applied", "To accumulators: accumulate or retract.",
          ((f"sum by (function, version, change) ({_rate('udf_applied_rows_total')})", f"{NAME} {{{{change}}}}"),),
          "cps"),
    Panel("Accumulators merged", "With others of their key.", _per_function("udf_merged_accumulators_total"), "cps"),
    Panel("Rows emitted, timers fired", "By process table functions.",
          ((f"{BY} ({_rate('udf_emitted_rows_total')})", f"{NAME} rows"),
           (f"{BY} ({_rate('udf_timers_fired_total')})", f"{NAME} timers")), "cps"),
    Panel("State", "Bytes of state and timers received and sent with segments.",
          ((f"sum by (function, version, direction) ({_rate('udf_state_bytes_total')})",
            f"{NAME} {{{{direction}}}}"),), "Bps"),
)  # fmt: skip
MERGED = (
    Panel("Rows per common call", "Calls with rows of several streams (max-queue-delay).",
          ((f"{BY} ({_rate('udf_call_rows_sum')}) / {BY} ({_rate('udf_call_rows_count')})", NAME),)),
    Panel("Second calls", "Sent because a call was slow; won (the first to answer) or wasted, per second.",
          ((f"sum by (function, version, outcome) ({_rate('udf_hedges_total')})", f"{NAME} {{{{outcome}}}}"),), "cps"),
    Panel("Queue delay", "Time that rows waited for such a call.",
          tuple((_quantile(q, "udf_queue_delay_seconds"), f"{NAME} p{q * 100:g}") for q in (0.5, 0.99)), "s"),
)  # fmt: skip
GUARDS = (
    Panel("Circuit open", "1 while a guard makes no calls.",
          ((f"max by (function, version) (udf_circuit_open{{{FUNCTIONS}}})", NAME),)),
    Panel("Calls allowed at once", "By guards, over all servers.",
          ((f"{BY} (udf_concurrency_limit{{{FUNCTIONS}}})", NAME),)),
    Panel("Calls not made", "Refused by an open circuit.",
          ((f"{BY} ({_rate('udf_circuit_refusals_total')})", NAME),), "cps"),
    Panel("Calls that waited", "Delayed by the rate limit.",
          ((f"{BY} ({_rate('udf_rate_waits_total')})", NAME),), "cps"),
    Panel("Spent", "What calls report with context.spend, by unit and caller, per second.",
          ((f"sum by (function, version, caller, unit) ({_rate('udf_spent_total')})",
            f"{NAME} {{{{caller}}}} {{{{unit}}}}"),), "cps"),
    Panel("Rows of named callers", "Per second, of the callers that the setting `callers` names.",
          ((f"sum by (caller) ({_rate('udf_caller_rows_total', SERVERS)})", "{{caller}}"),), "cps"),
    Panel("Budgets of callers used", "Part of the budget of the day (UTC).",
          ((f"max by (caller, unit) (udf_caller_budget_used_ratio{{{SERVERS}}})", "{{caller}} {{unit}}"),),
          "percentunit"),
    Panel("Streams and rows of named callers", "Open streams, and rows in flight.",
          ((f"sum by (caller) (udf_caller_streams_open{{{SERVERS}}})", "{{caller}} streams"),
           (f"sum by (caller) (udf_caller_rows_in_flight{{{SERVERS}}})", "{{caller}} rows"))),
    Panel("Claims for shared guards", "Of all servers, to the Redis of coordination_url or the parent process.",
          ((f"sum by (outcome) ({_rate('udf_coordination_seconds_count', SERVERS)})", "{{outcome}}"),), "cps"),
)  # fmt: skip
CACHE = (
    Panel("Rows of calls with a cache", "Hit, miss, shared with an equal row in flight, or without a key.",
          ((f"sum by (function, version, outcome) ({_rate('udf_cache_rows_total')})", f"{NAME} {{{{outcome}}}}"),),
          "cps"),
    Panel("Cache failures", "By reason; the function was called as without a cache.",
          ((f"sum by (reason) ({_rate('udf_cache_errors_total', SERVERS)})", "{{reason}}"),), "cps"),
    Panel("Cache bytes", "Kept in the memory of the process, and waiting to be written to a shared store.",
          ((f"sum by (instance) (udf_cache_bytes{{{SERVERS}}})", "{{instance}} memory"),
           (f"sum by (instance) (udf_cache_queue_bytes{{{SERVERS}}})", "{{instance}} queue")), "bytes"),
    Panel("Time of cache operations", "p99 by operation.",
          ((_quantile(0.99, "udf_cache_seconds", "operation", SERVERS), "{{operation}}"),), "s"),
)  # fmt: skip
SERVER = (
    Panel("Event loop lag", "p99. Above about 50 ms the process is short of CPU time.",
          ((_quantile(0.99, "udf_event_loop_lag_seconds", "instance", SERVERS), "{{instance}}"),), "s"),
    Panel("Calls lost", "Calls that have not returned; each may hold a thread. Orphaned: those of lost streams, kept.",
          ((f"{BY} (udf_calls_lost{{{FUNCTIONS}}})", NAME),
           (f"sum by (instance) (udf_cache_orphaned_rows{{{SERVERS}}})", "{{instance}} orphaned"))),
    Panel("Loops blocked", "By async def functions that block, per second.",
          _per_function("udf_function_loop_blocked_total"), "cps"),
    Panel("Waiting for a turn", "Workers of streams that wait for their function's loop or threads.",
          ((f"{BY} (udf_turns_waiting{{{FUNCTIONS}}})", NAME),)),
    Panel("Threads allowed", "Fewer than threads_per_function while a function only computes.",
          ((f"{BY} (udf_threads_allowed{{{FUNCTIONS}}})", NAME),)),
    Panel("Worker processes and groups", "Processes that were restarted, and streams passed on to a group; per second.",
          ((f"sum({_rate('udf_process_restarts_total', SERVERS)}) or vector(0)", "restarts"),
           (f"sum by (target_group) ({_rate('udf_relayed_streams_total', SERVERS)})", "to {{target_group}}")), "cps"),
    Panel("Files reloaded", "Reloads of TLS and access files, by outcome.",
          ((f"sum by (files, outcome) ({_rate('udf_file_reloads_total', SERVERS)})", "{{files}} {{outcome}}"),), "cps"),
    Panel("Lines of the log dropped", "Because nobody reads stdout or stderr of a server; per second.",
          ((f"sum by (instance, output) ({_rate('udf_output_lines_dropped_total', SERVERS)})",
            "{{instance}} {{output}}"),), "cps"),
    Panel("Versions and devices", "Servers by version; worker processes by the device that each has.",
          ((f"count by (version) (max without (group, process) (udf_server_info{{{SERVERS}}}))", "{{version}}"),
           (f"sum by (device) (udf_device_info{{{SERVERS}}})", "{{device}}"))),
)  # fmt: skip
SECTIONS = {
    "Overview": OVERVIEW,
    "Rows": ROWS,
    "Time": TIMES,
    "Load": LOAD,
    "Aggregates and process table functions": BUNDLES,
    "Common calls and second calls": MERGED,
    "Guards": GUARDS,
    "Cache": CACHE,
    "Server": SERVER,
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for section, members in SECTIONS.items():
        panels.append(_placed({"type": "row", "title": section, "collapsed": False, "panels": []}, 0, top, WIDTH, 1))
        top += 1
        across = len(members) if members[0].kind == "stat" else 3 if len(members) % 3 == 0 else 2
        width, height = WIDTH // across, STAT_HEIGHT if members[0].kind == "stat" else HEIGHT
        for place, panel in enumerate(members):
            panels.append(_placed(_panel(panel), place % across * width, top + place // across * height, width, height))
        top += -(-len(members) // across) * height
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": "udf-server",
        "title": "udf-server",
        "description": "Remote functions: rows, errors, times, load. Made by `python -m deploy`.",
        "tags": ["remote-udf"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(*each) for each in VARIABLES)]},
        "panels": panels,
    }


VARIABLES = (
    ("job", "label_values(udf_server_info, job)"),
    ("instance", 'label_values(udf_server_info{job=~"$job"}, instance)'),
    ("function", 'label_values(udf_rows_total{job=~"$job"}, function)'),
)


def _placed(panel: dict[str, Any], left: int, top: int, width: int, height: int) -> dict[str, Any]:
    return {**panel, "gridPos": {"x": left, "y": top, "w": width, "h": height}}


def _panel(panel: Panel) -> dict[str, Any]:
    heatmap = panel.kind == "heatmap"
    targets = [
        {
            "datasource": DATASOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + number),
            "format": "heatmap" if heatmap else "time_series",
        }
        for number, (expression, legend) in enumerate(panel.queries)
    ]  # fmt: skip
    options = OPTIONS.get(panel.kind, {}) if not heatmap else {
        "calculate": False, "yAxis": {"unit": panel.unit}, "cellValues": {"unit": "cps"},
    }  # fmt: skip
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "hide": 0}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "type": "query", "name": name, "label": name.capitalize(), "datasource": DATASOURCE,
        "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 1,
        "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
