"""What IPython and notebooks show of a session: HTML, and errors by their root cause.

HTML has no scripts, is escaped, and its colours are readable on light and dark backgrounds.
"""

import inspect
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, SupportsIndex, overload

from pyspark.errors import PySparkException

from remote_udf.credentials import without_credentials
from remote_udf.errors import RemoteUdfError
from remote_udf.functions import FunctionSpec
from spark_client.base.config import ClientConfig
from spark_client.base.root_cause import root_cause

__all__ = [
    "Explanation",
    "FunctionList",
    "bar",
    "function_html",
    "how_connected",
    "ipython_shell",
    "session_html",
    "shorten_tracebacks",
    "table",
]

MOST_LINES = 50
_CODE = "font-family:ui-monospace,monospace;font-size:.92em;white-space:pre-wrap;text-align:left"
_SOFT = "opacity:.7"
_CELL = "text-align:left;vertical-align:top"


class FunctionList(list[FunctionSpec]):
    """A list of functions that is shown with one line, or one row of a table, for each function.

    Lines are as wide as the terminal, and at most fifty are shown. `functions[50:]` has the rest.
    """

    def __init__(self, functions: Iterable[FunctionSpec] = (), jobs: Mapping[str, str] | None = None) -> None:
        """`jobs` says by "name@version" which jobs get a version, for functions whose versions have weights."""
        super().__init__(functions)
        self._jobs = jobs or {}

    @overload
    def __getitem__(self, index: SupportsIndex) -> FunctionSpec: ...
    @overload
    def __getitem__(self, index: slice) -> "FunctionList": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "FunctionSpec | FunctionList":
        found = super().__getitem__(index)
        return FunctionList(found, self._jobs) if isinstance(found, list) else found

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns
        keys = max((len(spec.key) for spec in self), default=0)
        jobs = max((len(self._jobs.get(spec.key, "")) + 2 for spec in self if self._jobs), default=0)
        lines = [
            f"{spec.key:{keys}}  {spec.kind:9}  {self._jobs.get(spec.key, ''):{jobs}}{spec.signature}"
            for spec in self[:MOST_LINES]
        ]
        lines = [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
        if len(self) > MOST_LINES:
            lines.append(f"... and {len(self) - MOST_LINES} more: functions[{MOST_LINES}:]")
        return "\n".join(lines) or "no functions"

    def _repr_html_(self) -> str:
        owned = any(spec.owner for spec in self)
        weighted = any(spec.key in self._jobs for spec in self)
        head = ["function", "kind", "signature", "", *(["owner"] if owned else []), *(["jobs"] if weighted else [])]
        rows = [
            [
                escape(spec.key), escape(spec.kind), _code(spec.signature),
                escape(_first_line(spec)), *([escape(spec.owner)] if owned else []),
                *([escape(self._jobs.get(spec.key, ""))] if weighted else []),
            ]
            for spec in self
        ]  # fmt: skip
        return table(head, rows)


class Explanation(str):
    """The text that `RemoteSession.explain` returns. A notebook shows the stages and collapses Spark's plan."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        stages, _, plan = self.partition("\n\n")
        items = "".join(f"<li>{escape(line.partition('. ')[2])}</li>" for line in stages.splitlines())
        folded = f"<details><summary>Spark's plan</summary>{_code(plan.rstrip(), tag='pre')}</details>"
        return f'<ol style="{_CELL}">{items}</ol>{folded}'


def session_html(config: ClientConfig, functions: FunctionList, facts: Mapping[str, str]) -> str:
    """A remote session as HTML: the server, the connection, and a collapsed list of functions."""
    count = len(functions)
    lines = _facts({"server": config.target, "connection": how_connected(config), **facts})
    return (
        f"<div><b>remote session</b>{lines}<details><summary>{count} function{'s' if count != 1 else ''}</summary>"
        f"{functions._repr_html_()}</details></div>"
    )


def function_html(spec: FunctionSpec, config: ClientConfig, options: Mapping[str, object]) -> str:
    """A function as HTML: its signature, its description and its server."""
    facts = {"version": spec.version, "kind": str(spec.kind), "server": config.target, "owner": spec.owner}
    facts["options"] = ", ".join(f"{name}={without_credentials(str(value))}" for name, value in options.items())
    described = f'<p style="white-space:pre-wrap">{escape(_description(spec))}</p>' if spec.description else ""
    return f"<div>{_code(spec.signature)}{described}{_facts(facts)}</div>"


def how_connected(config: ClientConfig) -> str:
    """Describe the connection in words, without contents of files or variables."""
    security = config.security
    parts = ["TLS" if security.encrypted else "no TLS"]
    if security.certificate_file is not None:
        parts.append("certificate")
    if security.has_token:
        parts.append("token")
    return ", ".join(parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    """A table as HTML. Cells are HTML and heads are text; the columns at the positions `numbers` are right-aligned."""
    right = set(numbers)
    styles = [f"{_CELL};text-align:right;white-space:nowrap" if i in right else _CELL for i in range(len(head))]
    lines = "".join(_row("td", row, styles) for row in rows)
    first = _row("th", map(escape, head), styles)
    return f'<table style="color:inherit"><thead>{first}</thead><tbody>{lines}</tbody></table>'


def _row(tag: str, cells: Iterable[str], styles: Sequence[str]) -> str:
    filled = (f'<{tag} style="{style}">{cell}</{tag}>' for cell, style in zip(cells, styles, strict=True))
    return f"<tr>{''.join(filled)}</tr>"


def bar(parts: Mapping[str, tuple[float, str]]) -> str:
    """A stacked bar with a legend. `parts` maps the name of each share to its amount and its colour."""
    whole = sum(amount for amount, _ in parts.values())
    if not whole:
        return ""
    shares = {name: (100 * amount / whole, colour) for name, (amount, colour) in parts.items() if amount}
    boxes = "".join(
        f'<span style="display:inline-block;height:.7em;width:{share:.2f}%;background:{colour}"></span>'
        for share, colour in shares.values()
    )
    legend = ", ".join(
        f'<span style="white-space:nowrap"><span style="color:{colour}">&#9632;</span> {escape(name)} '
        f"{_percent(share)}</span>"
        for name, (share, colour) in shares.items()
    )
    return (
        f'<div style="width:11em;white-space:nowrap;line-height:1">{boxes}</div>'
        f'<div style="width:12em;font-size:.9em">{legend}</div>'
    )


def _percent(share: float) -> str:
    """The share as a percentage. It is rounded to 0% or 100% only if it is exactly that."""
    if share in {0, 100}:
        return f"{share:.0f}%"
    return "&lt;1%" if share < 1 else "&gt;99%" if share > 99 else f"{share:.0f}%"


def _facts(facts: Mapping[str, str]) -> str:
    lines = [
        f'<div><span style="{_SOFT}">{escape(name)}:</span> {escape(value)}</div>'
        for name, value in facts.items()
        if value
    ]
    return "".join(lines)


def _code(text: str, tag: str = "code") -> str:
    return f'<{tag} style="{_CODE}">{escape(text)}</{tag}>'


def _description(spec: FunctionSpec) -> str:
    return inspect.cleandoc(spec.description)


def _first_line(spec: FunctionSpec) -> str:
    return _description(spec).partition("\n")[0] if spec.description else ""


def ipython_shell() -> Any:
    """The shell that runs this process's cells; None outside of IPython and Jupyter. It does not import IPython."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def shorten_tracebacks() -> None:
    """Show the root cause of a failed query instead of all of Spark's traceback.

    A handler of somebody else is kept. Outside of IPython and Jupyter it does nothing.
    """
    shell = ipython_shell()
    if shell is None or shell.custom_exceptions:
        return
    kinds: tuple[type[BaseException], ...] = (PySparkException, RemoteUdfError)
    py4j = sys.modules.get("py4j.protocol")
    if py4j is not None:
        kinds = (*kinds, py4j.Py4JJavaError)
    shell.set_custom_exc(kinds, _show)


def _show(shell: Any, kind: type[BaseException], error: Any, trace: object, tb_offset: int | None = None) -> None:
    # The protocol of IPython for exceptions that show themselves. Without it, %tb shows the whole traceback.
    error._render_traceback_ = lambda: [*root_cause(error).splitlines(), "(%tb shows the whole traceback)"]
    try:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    finally:
        del error._render_traceback_
