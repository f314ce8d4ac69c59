"""Shell: runs the statements that it reads, and prints their results, until the input ends."""

import contextlib
import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from remote_udf.errors import RemoteUdfError
from spark_client.base.errors import PlanError
from spark_client.session import RemoteSession
from spark_client.shell.tables import add_table
from spark_client.sql.text.dialect import RemoteSpark

__all__ = ["FORMATS", "HELP", "Shell", "split_statements"]

HELP = """\
SELECT ...;            a statement, over as many lines as it takes; a semicolon ends it
SHOW TABLES;           the tables there are, and DESCRIBE name; their columns
\\functions [name]      the remote functions, or all about one
\\explain SELECT ...     what is made of a query, and what runs where
\\table name=path       a file as a table: CSV, JSON, ORC or Parquet
\\help                  this
\\quit                  the end; so is Ctrl-D"""

WIDTH = 60
"""Maximum number of characters of a cell in a table; longer texts are cut."""
_OURS = re.compile(r"^(?:spark_client\.base|remote_udf)\.errors\.\w+: ", re.MULTILINE)


class Shell:
    """One session. `write` gets results and `complain` gets error messages, both without a line end."""

    def __init__(
        self, remote: RemoteSession, write: Callable[[str], object], complain: Callable[[str], object],
        *, form: str = "table", rows: int = 50, timing: bool = False,
    ) -> None:  # fmt: skip
        self._remote = remote
        self._write = write
        self._complain = complain
        self._form = form
        self._rows = rows
        self._timing = timing
        self._open = ""
        """The text of an incomplete statement."""
        self.ended = False
        """Whether the user has entered \\quit."""

    @property
    def in_statement(self) -> bool:
        """Whether the next line continues a statement."""
        return bool(self._open.strip())

    def run_all(self, lines: Iterable[str]) -> bool:
        """Run statements until one fails. Returns whether all succeeded. The last one needs no semicolon."""
        for line in lines:
            if not self.feed(line):
                return False
            if self.ended:
                return True
        return not self.in_statement or self.feed(";")

    def feed(self, line: str) -> bool:
        """Add a line and run the statements that it completes. Returns whether they succeeded."""
        if not self.in_statement:
            line = line.removeprefix("\ufeff")  # with which some editors begin a file
        if not self.in_statement and line.lstrip().startswith("\\"):
            return self._guarded(lambda: self._command(line.strip()))
        statements, self._open = split_statements(f"{self._open}{line}\n")
        return all(self._guarded(lambda text=text: self._run(text)) for text in statements)  # type: ignore[misc]

    def forget(self) -> None:
        """Discard an incomplete statement."""
        self._open = ""

    def _run(self, statement: str) -> None:
        begin = time.monotonic()
        text = _shown(self._remote.sql(statement), self._form, self._rows)
        if text:
            self._write(text)
        if self._timing:
            self._write(f"{time.monotonic() - begin:.1f} s")

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip().removesuffix(";")
        commands: dict[str, Callable[[str], object]] = {
            "\\functions": self._functions,
            "\\explain": lambda told: self._write(self._remote.explain(told)),
            "\\table": lambda told: self._write(f"table {add_table(self._remote.spark, told)}"),
            "\\help": lambda _: self._write(HELP),
            "\\quit": lambda _: setattr(self, "ended", True),
        }
        matching = [known for known in commands if known.startswith(name) and len(name) > 1]
        if len(matching) != 1:
            raise ValueError(f"{name} is not a command; \\help lists the commands")
        commands[matching[0]](rest)

    def _functions(self, name: str) -> None:
        functions = self._remote.functions()
        chosen = [each for each in functions if not name or name in (each.name, each.key)]
        if not chosen:
            raise ValueError(f"the server has no function {name}")
        for spec in chosen:
            described = spec.description if name else spec.description.partition("\n")[0]
            self._write(f"{spec.signature}  {spec.kind.value}{': ' * bool(described)}{described}")

    def _guarded(self, run: Callable[[], object]) -> bool:
        """Return whether `run` succeeded. Errors of users are printed as messages; Ctrl-C only ends the statement."""
        try:
            run()
        except KeyboardInterrupt:
            with contextlib.suppress(Exception):
                self._remote.spark.interruptAll()
            self._complain("interrupted")
            return False
        except PySparkException as error:
            self._complain(_brief(error.getMessage() or str(error)))
            return False
        except (RemoteUdfError, ValueError) as error:
            self._complain(str(error))
            return False
        return True


def _brief(message: str) -> str:
    """Shorten Spark's message: without stack traces, and for an error of this project only the text of that error."""
    message = message.partition("\n\nJVM stacktrace")[0]
    ours = list(_OURS.finditer(message))
    return (message[ours[-1].end() :] if ours else message).strip()


def split_statements(text: str) -> tuple[list[str], str]:
    """The statements that end with a semicolon, without it, and the text that follows the last one.

    Semicolons in strings, quoted names and comments do not end a statement. Statements that contain only blanks and
    comments are skipped. A statement does not end before its strings are closed.
    """
    tokens = _tokens(text)
    if tokens is None:
        # The text is split up to the last semicolon before which it can be tokenized; the rest is incomplete.
        for end in _semicolons_from_last(text):
            statements, rest = split_statements(text[: end + 1])
            if not rest:
                return statements, text[end + 1 :]
        return [], text
    statements, begin, first = [], 0, 0
    for index, token in enumerate(tokens):
        if token.token_type is not TokenType.SEMICOLON:
            continue
        if index > first:
            statements.append(text[begin : token.start].strip())
        begin, first = token.end + 1, index + 1
    return statements, text[begin:] if first < len(tokens) else ""


def _tokens(text: str) -> Sequence[Token] | None:
    try:
        return list(RemoteSpark().tokenize(text))
    except SqlglotError:
        return None


def _semicolons_from_last(text: str) -> Iterator[int]:
    end = text.rfind(";")
    while end >= 0:
        if _tokens(text[: end + 1]) is not None:
            yield end
        end = text.rfind(";", 0, end)


def _shown(frame: DataFrame, form: str, rows: int) -> str:
    """The first `rows` rows as text in one of the FORMATS; an empty text for a statement without a result.

    A table shows whether there are more rows. Raises PlanError for a stream, because it never ends.
    """
    if not frame.columns:
        return ""
    if frame.isStreaming:
        raise PlanError("this query reads a stream, which never ends: start it from Python, with writeStream")
    found = frame.limit(rows + 1).collect()
    return FORMATS[form](frame.columns, found[:rows], len(found) > rows)


def _table(columns: list[str], rows: list[Row], more: bool) -> str:
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[at], (int, float)) or row[at] is None for row in rows) and bool(rows)
        for at in range(len(columns))
    ]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]

    def line(texts: list[str]) -> str:
        padded = (text.rjust(w) if r else text.ljust(w) for text, w, r in zip(texts, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    count = f"({len(rows)} rows; there are more)" if more else f"({len(rows)} row{'s' * (len(rows) != 1)})"
    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, cells), count])


def _cell(value: object) -> str:
    text = "NULL" if value is None else str(value).replace("\n", "\\n")
    return text if len(text) <= WIDTH else text[: WIDTH - 1] + "…"


def _csv(columns: list[str], rows: list[Row], more: bool) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue().removesuffix("\n")


def _json(columns: list[str], rows: list[Row], more: bool) -> str:
    return "\n".join(json.dumps(row.asDict(recursive=True), default=str, ensure_ascii=False) for row in rows)


FORMATS: Mapping[str, Callable[[list[str], list[Row], bool], str]] = {"table": _table, "csv": _csv, "json": _json}
