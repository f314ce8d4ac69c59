"""The results as one HTML page."""

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.report import Entry, score, summary
from tests.conformance.verdict import Status

__all__ = ["write_page"]

_STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; line-height: 1.4 }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; vertical-align: top; padding: .3rem .6rem;
border-bottom: 1px solid #8884 } td:first-child { white-space: nowrap } dl { margin: .3rem 0 }
dt { font-weight: 600 } dd { margin: 0 0 .3rem 1rem; overflow-wrap: anywhere } .bad td:first-child { color: #d33 }
"""


def write_page(entries: Sequence[Entry], path: Path) -> None:
    """Writes failed and open cases first, passed ones last."""
    worst = [each for each in Status if each.bad]
    order = [*worst, Status.REFUSED, Status.VACUOUS, Status.PARTLY, Status.NOT_APPLICABLE, Status.PASSED]
    counts = Counter(entry.status for entry in entries)
    noticed, made = score(entries)
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Conformance</title>"]
    parts.append(f"<style>{_STYLE}</style>")
    parts.append("<h1>Conformance</h1><ul>" + "".join(f"<li>{_text(each)}</li>" for each in summary(entries)) + "</ul>")
    if made:
        parts.append(f"<p>{noticed} of {made} altered expectations were noticed.</p>")
    for status in order:
        if counts[status.value]:
            parts.append(f"<h2>{_text(status.value)} ({counts[status.value]})</h2>")
            parts.append("<table><tr><th>Case</th><th>What was found</th><th>Functions</th></tr>")
            parts += [_row(entry) for entry in entries if entry.status == status.value]
            parts.append("</table>")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n")


def _row(entry: Entry) -> str:
    told = [] if entry.wording is not None else [("", entry.reason)]
    if entry.wording is not None:
        told += [("Expected", entry.wording[0]), ("Said", entry.wording[1]), ("Lacks", entry.wording[2])]
    told += [(f"Not checked: {name}", why or "no reason is declared") for name, why in entry.unchecked.items()]
    told += [("Altered and not noticed", each) for each in entry.unnoticed]
    shown = "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in told if text)
    functions = "<br>".join(f"{_text(name)}: {_text(origin)}" for name, origin in entry.bound.items())
    bad = " class=bad" if entry.bad else ""
    return (
        f"<tr{bad}><td>{_text(entry.id)}<br>{_text(entry.file)}</td><td><dl>{shown}</dl></td><td>{functions}</td></tr>"
    )


def _text(value: str) -> str:
    return html.escape(str(value))
