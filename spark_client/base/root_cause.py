"""Finds what matters in the error of a job: Spark reports a failed task in a hundred lines of Python and Java."""

import re

__all__ = ["COLUMN_VALUE", "OTHER_FRAME", "OTHER_FRAME_HINT", "UNKNOWN_VALUE", "root_cause"]

_OURS = re.compile(r"^(?:spark_client|remote_udf)(?:\.\w+)*\.errors\.(\w+): (.*)$")
_RAISED = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Warning|Exit|Interrupt|Iteration))(?:: (.*))?$")
_TRACEBACK = "Traceback (most recent call last)"
_REMOTE = "Remote traceback:"
_PLACE = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
_ENDS = re.compile(
    r"^(?:\s+at [\w.$/]+\(|Caused by: |JVM stacktrace:|Driver stacktrace:|Remote traceback:|Traceback \(most recent|"
    r"The above exception was|During handling of the above|SQLSTATE: )"
)
_SQLSTATE = re.compile(r"\.? SQLSTATE: \w{5}.*$")
_PROGRAM = re.compile(r'Cannot run program "([^"]*)"')
_MODULE = re.compile(r"No module named '(remote_udf|spark_client|grpc|google|pyarrow|numpy)\b")
OTHER_FRAME = re.compile(
    r"\[MISSING_ATTRIBUTES\.\w+\] Resolved attribute\(s\) \"([^\"]*)\"|"
    r"\[CANNOT_RESOLVE_DATAFRAME_COLUMN\] Cannot resolve dataframe column \"([^\"]*)\""
)
"""Spark's errors about a column that a frame does not have, with its name, in classic sessions and on Connect."""
COLUMN_VALUE = re.compile(r"(function [^\[\]]* is a remote aggregate[^\[\]]*) \[call (\d+)\]")
"""The name of a column that is the call of a remote aggregate: what to do, and the number of the call."""
UNKNOWN_VALUE = re.compile(f"with name `{COLUMN_VALUE.pattern}")
"""Spark's error about such a column, which no frame of Spark has."""
OTHER_FRAME_HINT = (
    "the column was taken from another DataFrame. A result of remote calls has new columns, so name the column, "
    'F.col("{0}"), or take it from the result, result["{0}"]'
)
_HINTS = (
    (_PROGRAM, "PYSPARK_PYTHON, or spark.pyspark.python, names a Python that the executors do not have"),
    (re.compile("PYTHON_VERSION_MISMATCH"), "PYSPARK_PYTHON must name the driver's version of Python on executors"),
    (_MODULE, "install the client for the Python of the executors: pip install 'remote-udf[spark]'"),
    (re.compile(r"\b[Pp]andas\b.* must be installed|No module named 'pandas'"),
     "install the client with Spark's packages for the Python of the executors: pip install 'remote-udf[spark]'"),
    (re.compile("UNRESOLVED_ROUTINE|UNRESOLVABLE_TABLE_VALUED_FUNCTION"),
     "if it is a remote function, use remote.sql in place of spark.sql; remote.register() makes remote functions known "
     "to spark.sql"),
    (OTHER_FRAME, OTHER_FRAME_HINT.format("name")),
    (re.compile(r"STATE_STORE_(?:KEY|VALUE)_SCHEMA_NOT_COMPATIBLE|STATE_STORE_INVALID_CONFIG_AFTER_RESTART"),
     "the query is another one than its checkpoint was written by: start from a new checkpoint, or run it as it was"),
)  # fmt: skip
"""What to do about errors that Spark reports."""


def root_cause(error: BaseException) -> str:
    """Return the lines that matter of an error: `except Exception as error: print(root_cause(error))`.

    Args:
        error: Any exception, such as one of Spark about a failed task.

    Returns:
        The message of the error at the origin; for a row that failed, function, arguments and error. A line with the
        place in the function's code, or a line that says what to do, follows if one is known.
    """
    text = str(error)
    lines = text.splitlines()
    message, rest = _origin(lines) or (f"{type(error).__name__}: {_first(lines)}", [])
    parts = [message]
    if (place := _place(rest)) is not None:
        parts.append(f"  {place}")
    parts += [f"  {hint}" for pattern, hint in _HINTS if pattern.search(text)][:1]
    return "\n".join(parts)


def _origin(lines: list[str]) -> tuple[str, list[str]] | None:
    """The message of the origin and the lines after it; None if the text is not that of a failed task."""
    ours = [index for index, line in enumerate(lines) if _OURS.match(line)]
    if ours:
        found = _OURS.match(lines[ours[-1]])
        assert found is not None
        return _message(found[1], found[2], lines[ours[-1] + 1 :])
    for line in lines:
        if (program := _PROGRAM.search(line)) is not None:
            return line[program.start() :].strip(), []
    begin = next((index for index, line in enumerate(lines) if _TRACEBACK in line), None)
    if begin is None:
        return None
    raised = [index for index, line in enumerate(lines[begin:], begin) if _RAISED.match(line)]
    if not raised:
        return None
    found = _RAISED.match(lines[raised[-1]])
    assert found is not None
    return _message(found[1], found[2] or "", lines[raised[-1] + 1 :])


def _message(kind: str, first: str, after: list[str]) -> tuple[str, list[str]]:
    """The message, which may have several lines, and the lines after it."""
    end = next((index for index, line in enumerate(after) if _ENDS.match(line)), len(after))
    lines = [first, *after[:end]]
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return _SQLSTATE.sub("", f"{kind}: " + "\n".join(lines)), after[end:]


def _place(lines: list[str]) -> str | None:
    """Where the function raised, from the remote traceback: its last place, with the line of code."""
    if not lines or not lines[0].startswith(_REMOTE):
        return None
    place = None
    for line, code in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(("\tat ", "JVM stacktrace:")):
            break
        if (found := _PLACE.match(line)) is not None:
            place = f"{found[1]}, line {found[2]}, in {found[3]}: {code.strip()}"
    return place


def _first(lines: list[str]) -> str:
    """The message without Java's stack and Spark's logical plan."""
    kept: list[str] = []
    for line in lines:
        if _ENDS.match(line) or (kept and (not line.strip() or line.startswith("'"))):
            break
        kept.append(line)
    return _SQLSTATE.sub("", "\n".join(kept))
