"""Tables of the documentation that are generated from the code; `make docs` writes them between cog's marks."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml
from prometheus_client.metrics import MetricWrapperBase

from deploy.chart_values import VALUES
from remote_udf.arrow import SCHEMA_BYTES
from remote_udf.errors import TRACEBACK_LIMIT
from remote_udf.option_tables import Option
from remote_udf.options import (
    AGGREGATE_OPTIONS,
    CALLER_OPTIONS,
    HOSTED_OPTIONS,
    PLAN_OPTIONS,
    SCALAR_OPTIONS,
    STREAM_OPTIONS,
)
from remote_udf.outcomes import MESSAGE_LIMIT
from remote_udf.process_planning import MAX_TABLES
from spark_client.executor.engine.row_engine import HELD_BYTES
from spark_client.executor.segments.cutting import BUNDLE_BYTES
from spark_client.executor.stream.in_flight import MESSAGE_BYTES
from spark_client.models.vector_search import MOST_BYTES as SEARCHED_BYTES
from spark_client.windows.emitting import EMIT_OPTIONS
from spark_client.windows.pane_windows import MOST_WINDOWS
from udf_server.base.key_value_store import LARGEST_ENTRY
from udf_server.base.metric_kinds import BulkHistogram
from udf_server.base.metrics import ServerMetrics
from udf_server.base.output import DroppedLines
from udf_server.cache.keys import LARGEST_ARGUMENTS
from udf_server.cache.running_calls import MOST_ORPHANS
from udf_server.cache.store_access import QUEUE_BYTES
from udf_server.limits.breaker import ADAPTIVE_MOST
from udf_server.plugins.loading import build_plugin_manager, load_functions
from udf_server.plugins.metrics import MOST_SERIES
from udf_server.serving.config import TABLES, ServerConfig, settings
from udf_server.serving.groups import GROUP_OPTIONS
from udf_server.serving.resources import divided_settings, part_of
from udf_server.streams.service import LISTS_AT_ONCE

ROOT = Path(__file__).parents[2]
PACKAGES = ("proto/remote_udf", "udf_server", "spark_client", "plugins", "examples", "benchmarks", "deploy")


PIPE = "\\|"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = tuple(head)
    lines = [titles, ("---",) * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', PIPE) for cell in line)} |\n" for line in lines)


def mutants() -> str:
    found = (ROOT / "tests/simulation/mutants_found.jsonl").read_text().splitlines()
    rows = [(what, str(seeds) if seeds else "not found", mode) for what, seeds, mode in map(json.loads, found)]
    return table(("planted bug", "seeds until it was found", "mode"), rows)


def fleet() -> str:
    """What the scenarios of a fleet measured last, with its size."""
    rows = [json.loads(line) for line in (ROOT / "tests/simulation/fleet/measures.jsonl").read_text().splitlines()]
    head = (
        "scenario", "phase", "streams, most / mean", "load, most / mean", "waiting 50 %", "90 %", "99 %", "most",
        "streams opened", "in the busiest 2 s", "failed rows",
    )  # fmt: skip
    shown = [
        (
            row["scenario"], row["phase"], *(str(row[key] or "") for key in ("streams_uneven", "max_over_mean_load")),
            *(f"{seconds:g} s" for seconds in row["waits"]),
            *(str(row[key]) for key in ("opened", "most_opened", "failed_rows")),
        )
        for row in rows
    ]  # fmt: skip
    size = f"With {rows[0]['clients']:,} clients and {rows[0]['servers']} servers:"
    return f"{size}\n\n{table(head, shown)}"


def compatibility() -> str:
    """What `make matrix` wrote, a row for each Python and PySpark."""
    cells = json.loads((ROOT / "docs/compatibility.json").read_text())
    results = {(cell["python"], cell["pyspark"], cell["tests"]): cell["result"] for cell in cells}
    kinds = {"spark": "Spark", "connect": "Spark Connect", "unit": "without Spark"}
    kinds |= {"oldest sqlglot": "oldest sqlglot", "newest sqlglot": "newest sqlglot", "pandas 3": "pandas 3"}
    rows = [
        (python, pyspark, *(results.get((python, pyspark, kind), "not tried") for kind in kinds))
        for python, pyspark in sorted({(cell["python"], cell["pyspark"]) for cell in cells})
    ]
    # The tests without Spark, and those of sqlglot, run with one PySpark for each Python.
    rows = [(*row[:4], *("" if cell == "not tried" else cell for cell in row[4:])) for row in rows]
    return table(("Python", "PySpark", *kinds.values()), rows)


def server_options() -> str:
    return _options(SCALAR_OPTIONS)


def hosted_options() -> str:
    return _options(HOSTED_OPTIONS)


def aggregate_options() -> str:
    return _options(AGGREGATE_OPTIONS)


def group_options() -> str:
    rows = []
    for name, option in GROUP_OPTIONS.items():
        shown = f"`{str(option.default).lower()}`" if option.default else ""
        rows.append((f"`{name}`", shown, option.doc))
    return table(("key", "default", "meaning"), rows)


def caller_options() -> str:
    return _options(CALLER_OPTIONS)


def emit_options() -> str:
    return _options(EMIT_OPTIONS)


def plan_options() -> str:
    return _options(PLAN_OPTIONS)


def stream_options() -> str:
    return _options(STREAM_OPTIONS)


def _options(options: Mapping[str, Option]) -> str:
    rows = [
        (f"`{name}`", "" if option.default is None else f"`{option.format(option.default)}`", option.doc)
        for name, option in options.items()
    ]
    return table(("option", "default", "meaning"), rows)


def the_settings() -> str:
    rows = []
    for setting in [*settings(), *(ServerConfig.__dataclass_fields__[name] for name in TABLES)]:
        default = setting.default
        given = setting.name not in TABLES and default not in (None, ())
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        rows.append((f"`{setting.name}`", f"`{shown}`" if given else "", setting.metadata["doc"]))
    return table(("setting", "default", "meaning"), rows)


def chart_values() -> str:
    """The values of the Helm chart. Those of several lines are shown by what they are."""
    rows = []
    for value in VALUES:
        text = json.dumps(value.default)
        rows.append((f"`{value.path}`", f"`{text}`" if len(text) < 60 else "as with kustomize", value.doc))
    return table(("value", "default", "meaning"), rows)


def divided() -> str:
    """The settings that are divided among the processes of a server, and the parts of four processes."""
    whole, part = ServerConfig(), part_of(ServerConfig(), 4)
    rows = [(f"`{name}`", f"`{getattr(whole, name)}`", f"`{getattr(part, name)}`") for name in divided_settings()]
    return table(("setting", "default", "part of one of four processes"), rows)


def metrics() -> str:
    server, rows = ServerMetrics(), []
    for name, value in vars(server).items():
        if not isinstance(value, MetricWrapperBase | BulkHistogram | DroppedLines):
            continue
        family = next(iter(value.describe()))
        labels = value.labels if isinstance(value, DroppedLines) else vars(ServerMetrics)[name].labels
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append((f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    return table(("metric", "type", "labels", "meaning"), rows)


def alerts() -> str:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules/alerts.yml").read_text())["groups"]
    rows = [
        (f"`{rule['alert']}`", f"`{rule['expr']}`", rule.get("for", ""), rule["annotations"]["action"])
        for group in groups
        for rule in group["rules"]
    ]
    return table(("alert", "fires while", "for", "what to do"), rows)


def shipped_functions() -> str:
    """Lists every function of the plugins in this repository, except udf_models and udf_sql, which operators define."""
    rows = []
    for folder in sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml")):
        manager = build_plugin_manager([folder.name], entry_points=False)
        rows += [
            (function.spec.name, _code(function.spec.signature), function.spec.description.partition("\n")[0])
            for _, function in load_functions(manager)
        ]
    return table(("function", "what it does"), (row[1:] for row in sorted(rows)))


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def limits() -> str:
    """What is bounded by a constant, with its value."""
    bounded: list[tuple[str, int, str, str]] = [
        ("schema of the arguments of a call", SCHEMA_BYTES, "bytes", "the stream is refused"),
        ("message of an error", MESSAGE_LIMIT, "characters", "it is cut"),
        ("traceback of an error", TRACEBACK_LIMIT, "characters", "it is cut at its start"),
        ("rows of a task that wait for slower rows, ordered", HELD_BYTES, "bytes", "the task reads no further rows"),
        ("size of a message", MESSAGE_BYTES, "bytes", "larger batches are cut; a row that is larger is sent alone"),
        ("bundle of an aggregate or process function", BUNDLE_BYTES, "bytes", "it is sent; `size` bounds its rows"),
        ("table arguments of a process function", MAX_TABLES, "", "the function is refused when it is declared"),
        ("outcome that is kept by the cache", LARGEST_ENTRY, "bytes", "it is not kept, and is counted"),
        ("arguments of a row with a key in the cache", LARGEST_ARGUMENTS, "bytes", "the row is called without it"),
        ("outcomes that wait to be written to the cache", QUEUE_BYTES, "bytes", "others are not kept, and are counted"),
        ("rows of lost streams whose calls go on for the cache", MOST_ORPHANS, "rows", "other calls are cancelled"),
        ("unread lists of functions of a caller, per server process", LISTS_AT_ONCE, "lists", "it waits for others"),
        ("calls of a guard with `adaptive` and no `max-concurrency`", ADAPTIVE_MOST, "calls", "calls wait"),
        ("windows of a row in HOP or CUMULATE", MOST_WINDOWS, "", "the query is refused"),
        ("table that `VECTOR_SEARCH` searches", SEARCHED_BYTES, "bytes", "the query is refused"),
        ("time series of a plugin's metric", MOST_SERIES, "", "further ones are counted as `other`"),
    ]  # fmt: skip
    rows = [(what, _amount(value, unit), then) for what, value, unit, then in bounded]
    return table(("what", "at most", "beyond it"), rows)


def _amount(value: int, unit: str) -> str:
    if unit != "bytes":
        return f"{value:,} {unit}".strip()
    return f"{value >> 20} MB" if value >= 1 << 20 else f"{value >> 10} kB"


def modules() -> list[Path]:
    """Returns every module of the project, except generated code and tests, in the order of reading."""
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"), key=lambda path: (path.parent, path.name))
        if not path.stem.endswith("_pb2") and "tests" not in path.relative_to(ROOT).parts
    ]
