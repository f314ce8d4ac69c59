"""The web UI as HTML, rendered on the server. Everything that comes from a plugin is escaped."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from udf_server.page.catalogue import Catalogue, Listed

__all__ = ["error_page", "page"]

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="page.css">
{script}</head>
<body>
"""
_COLUMNS = {
    "kind": "kind", "rows": "rows", "rate": "rows/s", "line": "last minutes", "failed": "failed",
    "in_flight": "in flight", "mean": "mean time", "waits": "waits for", "hits": "cache hits", "spent": "spent",
    "errors": "errors",
}  # fmt: skip
"""The title of each statistic. The script fills `rate` and `line`, and `waits` from what has changed."""
_NUMBERS = ("rows", "rate", "failed", "in_flight", "mean", "hits")
_SCRIPT = '<script src="page.js" defer></script>\n'


def page(catalogue: Catalogue) -> str:
    """The whole page. Without scripts it shows the catalogue and the current statistics."""
    return "".join(_page(catalogue))


def error_page(title: str, message: str) -> str:
    """A page with an error message."""
    head = _HEAD.format(title=escape(title), script="")
    return f"{head}<main><h1>{escape(title)}</h1><p>{escape(message)}</p></main>\n</body>\n</html>\n"


def _page(catalogue: Catalogue) -> Iterator[str]:
    server, functions = catalogue["server"], catalogue["functions"]
    yield _HEAD.format(title="udf-server", script=_SCRIPT)
    state = "ready" if server["ready"] else "not ready"
    processes = f", {server['processes']} processes" if server["processes"] > 1 else ""
    devices = f", on {escape(', '.join(server['devices']))}" if server["devices"] else ""
    count = f"{len(functions)} function{'s' if len(functions) != 1 else ''}"
    yield (
        f"<header><h1>udf-server</h1><p>version {escape(server['version'])}{processes}{devices}, "
        f'<span id="state">{state}</span>, {count}</p>'
        '<p><a href="metrics">metrics</a> <a href="catalog.json">catalog.json</a></p></header>\n<main>\n'
    )
    if not functions:
        yield "<p>There are no functions: no plugin offers one, or you may not call any.</p>"
    else:
        yield '<input id="filter" type="search" placeholder="Filter functions" aria-label="Filter functions" hidden>\n'
        yield from _table(functions)
        yield from _spending(catalogue)
        for function in functions:
            yield from _function(function)
    yield "</main>\n</body>\n</html>\n"


def _table(functions: list[Listed]) -> Iterator[str]:
    """A row for each function. On a narrow screen a cell has its title beside it."""
    titles = "".join(f"<th{_side(name)}>{title}</th>" for name, title in _COLUMNS.items())
    yield f'<table id="statistics"><thead><tr><th>function</th>{titles}</tr></thead>\n<tbody>\n'
    for function in functions:
        key, found = escape(function["key"]), function["statistics"]
        mean = found["row_seconds"] / found["row_count"] if found["row_count"] else None
        texts = {code: f": {text}" for code, text in found["texts"].items()}
        errors = (
            f"{code} {count:,.0f}{texts.get(code, '')}" for code, count in sorted(found["errors"].items()) if count
        )
        shown = {
            "kind": function["kind"],
            "rows": f"{found['ok'] + found['failed'] + found['skipped']:,.0f}",
            "failed": f"{found['failed']:,.0f}",
            "in_flight": f"{found['in_flight']:,.0f}",
            "mean": _seconds(mean),
            "waits": "its guard: the circuit is open" if found["circuit_open"] else "",
            "hits": _hit_rate(found),
            "spent": _amounts(found["spent"]),
            "errors": "\n".join(errors),
        }
        cells = "".join(
            f'<td{_side(name)} data-title="{title}" data-statistic="{name}">{escape(shown.get(name, ""))}</td>'
            for name, title in _COLUMNS.items()
        )
        yield f'<tr data-key="{key}"><td><a href="#{key}">{key}</a></td>{cells}</tr>\n'
    yield "</tbody></table>\n"


def _side(name: str) -> str:
    return ' class="n"' if name in _NUMBERS else ""


def _spending(catalogue: Catalogue) -> Iterator[str]:
    """What callers and jobs have spent. The tables are hidden while they are empty; the script fills them."""
    callers = [(row["caller"] or "anyone", row["function"], _amounts(row["spent"])) for row in catalogue["callers"]]
    budgets = [(row["caller"] or "anyone", row["budget"], _parts(row["spent"])) for row in catalogue["budgets"]]
    for name, title, second, rows in (
        ("callers", "Spent by caller", "function", callers), ("budgets", "Budgets", "budget", budgets),
    ):  # fmt: skip
        yield f'<table id="{name}"{"" if rows else " hidden"}><caption>{title}</caption><thead><tr><th>caller</th>'
        yield f"<th>{second}</th><th>spent</th></tr></thead>\n<tbody>\n"
        for row in rows:
            yield f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>\n"
        yield "</tbody></table>\n"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:,.6g} {unit}" for unit, amount in sorted(amounts.items()))


def _parts(amounts: Mapping[str, Sequence[float]]) -> str:
    return ", ".join(f"{spent:,.6g} of {most:,.6g} {unit}" for unit, (spent, most) in sorted(amounts.items()))


def _hit_rate(statistics: Mapping[str, float]) -> str:
    """The share of rows that were not called because of the cache; empty without a cache."""
    saved = statistics["cache_hit"] + statistics["cache_shared"]
    rows = saved + statistics["cache_miss"] + statistics["cache_uncached"]
    return f"{100 * saved / rows:.0f}%" if rows else ""


def _function(function: Listed) -> Iterator[str]:
    key = escape(function["key"])
    yield f'<section id="{key}" data-key="{key}"><h2>{escape(function["name"])} <small>'
    yield f"{escape(function['kind'])}, version {escape(function['version'])}</small></h2>\n"
    yield f'<p class="signature"><code>{escape(function["signature"])}</code></p>\n'
    if function["description"]:
        yield f'<p class="description">{escape(function["description"])}</p>\n'
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in function["facts"].items())
    yield f"<dl>{facts}</dl>\n"
    if function["tryable"]:
        yield from _form(function)
    yield "</section>\n"


def _form(function: Listed) -> Iterator[str]:
    """The form of a test call. The script sends it: without a script, the arguments would have to be in the URL."""
    yield f'<form class="try" data-function="{escape(function["key"])}" hidden>'
    for parameter in function["parameters"]:
        yield (
            f"<label>{escape(parameter['name'])} <small>{escape(parameter['type'])}</small> "
            '<input name="argument" autocomplete="off"></label>'
        )
    yield '<button>Try</button> <output></output></form><noscript><p class="hint">Scripts are off: use '
    yield f"<code>udf-server call {escape(function['key'])}</code>.</p></noscript>\n"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
