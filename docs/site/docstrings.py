"""Docstrings are written in Markdown, as editors show it, and Sphinx reads reStructuredText.

This translates what they use: fenced blocks, blocks by indentation, names in backticks, names of classes, and
the sections Args and Raises.
"""

import enum
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sphinx.application import Sphinx

import remote_udf.errors
import spark_client
import spark_client.base.errors
import udf_server
import udf_server.base.errors
import udf_server.testing
from spark_client.base.config import ClientConfig

CODE = re.compile(r"(?<!`)(?:`([^`]+)`|`` (.+?) ``)(?!`)", re.DOTALL)
NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*(\(\))?")
CLASS = re.compile(r"(?<![.\w])[A-Z]\w*[a-z]\w*(?!\.?\w)")
PUBLIC = {
    name
    for module in (
        udf_server,
        udf_server.base.errors,
        udf_server.testing,
        spark_client,
        spark_client.base.errors,
        remote_udf.errors,
    )
    for name in module.__all__
    if CLASS.fullmatch(name)
}
"""Classes are named in prose without backticks."""
DEFAULT = re.compile(r"<class '([\w.]+)'>|<(\w+\.\w+): [^>]*>|<factory>")
CONFIGURED = re.compile(r"ClientConfig\.(\w+)")
SECTION = re.compile(r"( *)(?:Args|Raises):")
ENTRY = re.compile(r"( +)(\**\w+): (.+)")
FENCE = re.compile(r"( *)```(\w*)")
NOT_MADE_BY_USERS = {
    "AggregateExpression", "Bundle", "CallContext", "Function", "JobSummary", "OverExpression", "ProcessContext",
    "RemoteAggregate", "RemoteFunction", "RemoteGrouping", "RemoteSession", "WindowSpec",
}  # fmt: skip
"""Users do not call their constructors."""


def setup(app: Sphinx) -> dict[str, Any]:
    """For Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", translate)
    app.connect("autodoc-process-signature", shown_signature)
    return {"parallel_read_safe": True}


def translate(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Replaces the lines in place, as autodoc wants it."""
    text: list[str] = []
    translated: list[str] = []
    block: str | None = None
    for line in _fenced(_listed(lines)):
        fence = FENCE.fullmatch(line)
        if block is not None:
            translated.append("" if fence else f"{block}   {line.removeprefix(block)}".rstrip())
            block = None if fence else block
        elif fence:
            translated += [*_prose(text), "", f"{fence[1]}.. code-block:: {fence[2] or 'text'}", ""]
            text, block = [], fence[1]
        else:
            text.append(line)
    lines[:] = [*translated, *_prose(text)]


def shown_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """None of a class that others make; defaults as people write them."""
    if what == "class" and (name.rpartition(".")[2] in NOT_MADE_BY_USERS or issubclass(value, enum.Enum)):
        return "", None
    if signature:
        signature = DEFAULT.sub(lambda found: found[1] or found[2] or "...", signature)
        signature = CONFIGURED.sub(lambda found: repr(getattr(ClientConfig, found[1])), signature)
    return signature, returns


def _listed(lines: list[str]) -> Iterator[str]:
    """Makes a list of the entries of the sections Args and Raises."""
    section: str | None = None
    for line in lines:
        start = SECTION.fullmatch(line)
        entry = ENTRY.fullmatch(line) if section is not None else None
        if start:
            section = start[1]
            yield from (line, "")
        elif entry and entry[1].startswith(f"{section} "):
            yield f"{section}- `{entry[2]}`: {entry[3]}"
        elif section is not None and line.startswith(f"{section}        "):
            yield f"{section}  {line.strip()}"  # an entry goes on
        else:
            section = None
            yield line


def _fenced(lines: Iterable[str]) -> Iterator[str]:
    """Puts fences around a block that is code by its indentation alone."""
    inside, before = False, ""
    for line in lines:
        if not inside and line.startswith("    ") and not before:
            inside = True
            yield "    ```text"
        elif inside and line and not line.startswith("    "):
            inside = False
            yield "    ```"
        yield line
        before = line
    if inside:
        yield "    ```"


def _prose(lines: list[str]) -> list[str]:
    text, done = "\n".join(lines), 0
    parts: list[str] = []
    for found in CODE.finditer(text):
        parts += [_words(text[done : found.start()]), _code(found[1] or found[2])]
        done = found.end()
        # Markup must end where a word does.
        parts.append("\\ " if text[done : done + 1].isalnum() else "")
    parts.append(_words(text[done:]))
    return "".join(parts).split("\n")


def _code(text: str) -> str:
    if text in PUBLIC:
        return f":py:obj:`.{text}`"
    return f":py:obj:`{text}`" if NAME.fullmatch(text) else f"``{text}``"


def _words(text: str) -> str:
    # An "@" is no address of electronic mail here.
    return CLASS.sub(lambda found: _code(found[0]) if found[0] in PUBLIC else found[0], text).replace("@", "\\@")
