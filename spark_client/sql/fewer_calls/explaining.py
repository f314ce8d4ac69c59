"""Reads from Spark's plan how often each remote scalar function is called, and which conditions run before it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from spark_client.base.errors import PlanError
from spark_client.functions.registered_names import shown
from spark_client.planning.aggregate.query import BY_PLAN
from spark_client.sql.rows.functions import SqlSession

__all__ = [
    "aggregate_stages",
    "called_in",
    "calls_in",
    "conditions_in",
    "evaluated_in",
    "frame_stages",
    "plan_of",
    "scalar_stages",
    "sorting_stages",
    "without_kept",
]


_TREE = re.compile(r"^(?P<depth>[ :|]*(?:[+:]- )?)(?:\*\(\d+\) )?(?P<node>.*)$")
_EVALUATION = re.compile(r"^(?:Arrow|Batch)EvalPython \[(?P<calls>.*?)\], \[(?P<results>[^\]]*)\]")
_OPERATOR = re.compile(r"^MapInArrow operate(?:\[(?P<calls>[^\]]*)\])?\(")
"""What `with_columns`, `select`, `group_by` and `process` of the remote session plan."""
MANY_OPERATORS = 8
"""If calls as columns take more operators than this, the explanation of a DataFrame begins with them."""
_TOGETHER = "write remote.select(df, ...) in place of df.select, or remote.sql, which make the calls of a row in one"
_NUMBER = re.compile(r"#\d+L?")
_PUSHED = re.compile(r"PushedFilters: \[([^\]]+)\]")
_RESULT = re.compile(r"pythonUDF\d+")
_FAILED = "Error occurred during query planning"
"""How the answer of EXPLAIN begins if there is no plan."""
_RANGES = "Exchange rangepartitioning("
_SORTED = (
    "ORDER BY: Spark makes the calls below it twice, because it samples the rows before it sorts them; persist() the "
    "rows first, or keep values with cache-ttl"
)
_ORDERED = (
    "output ordered, because in SQL a call is one column of its row; "
    'for output-mode unordered use remote.with_columns(..., output_mode="unordered")'
)


@dataclass(frozen=True)
class _Node:
    depth: int
    text: str
    fused: tuple[str, ...] = ()
    """The functions of the fused calls that the node evaluates."""


def plan_of(frame: DataFrame) -> str:
    """Spark's physical plan as text, with the names by which users know functions. A stream has one only when it runs.

    It comes from EXPLAIN, because `DataFrame.explain` prints, and the output of the process is not ours to redirect.
    Raises PlanError if Spark cannot plan the query.
    """
    # Spark takes a query for a stream only if its text says so.
    explain = "EXPLAIN SELECT * FROM STREAM {frame}" if frame.isStreaming else "EXPLAIN SELECT * FROM {frame}"
    plan = "\n".join(row[0] for row in frame.sparkSession.sql(explain, frame=frame).collect())
    if plan.startswith(_FAILED):
        if frame.isStreaming:
            return "Spark plans this stream when it is started: its own plan is that of StreamingQuery.explain()\n"
        raise PlanError(f"Spark cannot plan this query: {shown(plan).removeprefix(_FAILED).strip(': ')}")
    return shown(plan)


def without_kept(plan: str) -> str:
    """The plan without what `persist` keeps, which is computed once."""
    lines, kept = [], -1
    for line in plan.splitlines():
        found = _TREE.match(line)
        depth = len(found["depth"]) if found else 0
        if 0 <= kept < depth:
            continue
        kept = depth if found and found["node"].startswith("InMemoryRelation") else -1
        lines.append(line)
    return "\n".join(lines)


def evaluated_in(plan: str, name: str) -> list[str]:
    """The calls of a scalar function in Spark's plan, repeated for each time that a row passes them."""
    return [each for node in _nodes(plan) for each in _calls(node, name)]


def conditions_in(plan: str) -> Counter[str]:
    """The conditions in Spark's plan that do not call a Python function."""
    filters = [_plain(node.text.removeprefix("Filter ")) for node in _nodes(plan) if node.text.startswith("Filter ")]
    parts = [part.strip("() ") for text in filters for part in text.split(" AND ")]
    return Counter(part for part in parts if not _RESULT.search(part))


def scalar_stages(
    plan: str, functions: Iterable[str], called: Sequence[str], fused: Mapping[str, Sequence[str]]
) -> list[str]:
    """A line per function: its calls per row, the order of its output, and the conditions that Spark runs before it.

    `plan` is Spark's physical plan as text, `called` the names before parentheses in the query. Equal calls at one
    point of the plan are made once. `fused` has the calls that a function of fused calls makes, by its name.
    """
    written = Counter(each.lower() for each in called)
    nodes = [_unfused(node, fused) for node in _nodes(plan)]
    return [_of_function(nodes, name, written[name.lower()]) for name in functions]


def frame_stages(plan: str, functions: Iterable[str], fused: Mapping[str, Sequence[str]]) -> list[str]:
    """A line per function that Spark's plan of a DataFrame calls as a column, and one for operators over whole rows."""
    nodes = [_unfused(node, fused) for node in _nodes(plan)]
    called = [name for name in dict.fromkeys(functions) if any(_calls(node, name) for node in nodes)]
    stages = [_of_function(nodes, name, written=0) for name in called]
    alone = sum(any(_calls(node, name) for name in called) for node in nodes)
    if alone > MANY_OPERATORS:
        stages.insert(0, f"{alone} operators of Spark make calls, each with Python workers of its own; {_TOGETHER}")
    found_operators = [found for node in nodes if (found := _OPERATOR.match(node.text))]
    operators = [found for found in found_operators if BY_PLAN not in (found["calls"] or "")]
    if operators:
        many = f"{len(operators)} operators" if len(operators) > 1 else "1 operator"
        named = " and ".join(each["calls"] for each in operators if each["calls"])
        made = f" ({named})" if named else ""
        stages.append(f"{many} of remote calls over whole rows{made}; calls of a row in one operator run at once")
    return stages


def aggregate_stages(plan: str) -> list[str]:
    """A line per remote aggregate in Spark's plan: how its groups are computed, and why so."""
    operators = [found["calls"] or "" for node in _nodes(plan) if (found := _OPERATOR.match(node.text))]
    calls = [each.partition(BY_PLAN) for calls in operators for each in calls.split(", ") if BY_PLAN in each]
    return list(dict.fromkeys(f"{name}: an aggregate on the server, by plan {how}" for name, _, how in calls))


def called_in(plan: str, functions: Iterable[str], fused: Mapping[str, Sequence[str]]) -> list[str]:
    """The functions that Spark's plan calls, as columns or in operators over whole rows."""
    nodes = [_unfused(node, fused) for node in _nodes(plan)]
    operators = [found["calls"] or "" for node in nodes if (found := _OPERATOR.match(node.text))]
    whole = {call.partition(" ")[0] for calls in operators for call in calls.split(", ")}
    return [name for name in dict.fromkeys(functions) if name in whole or any(_calls(node, name) for node in nodes)]


def calls_in(session: SqlSession, frame: DataFrame) -> list[str]:
    """The functions and cascades that are called to compute a frame."""
    if frame.isStreaming:
        return []
    names = [name for spec in session.functions for name in (spec.name, spec.key)]
    return called_in(without_kept(plan_of(frame)), [*names, *session.cascades], session.fused.templates)


def sorting_stages(plan: str, functions: Iterable[str]) -> list[str]:
    """A line if calls are made a second time, because Spark samples the rows that it sorts."""
    nodes, names = _nodes(plan), list(functions)
    for index, node in enumerate(nodes):
        if not node.text.startswith(_RANGES):
            continue
        below = list(_below(nodes, index))
        if any(_OPERATOR.match(each.text) or any(_calls(each, name) for name in names) for each in below):
            return [_SORTED]
    return []


def _of_function(nodes: Sequence[_Node], name: str, written: int) -> str:
    made: list[str] = []
    before: list[str] = []
    for index, node in enumerate(nodes):
        calls = _calls(node, name)
        if not calls:
            continue
        made += calls
        before += [condition for condition in _conditions(_below(nodes, index)) if condition not in before]
    if not made:
        return f"{name}: a scalar function on the server, called where Spark plans it; {_ORDERED}"
    times = "1 call per row" if len(made) == 1 else f"{len(made)} calls per row"
    if written > len(made):
        times += f" for {written} in the text, because equal calls are made once"
    again = sorted({each for each in made if made.count(each) > 1})
    if again:
        times += f", {again[0]} again for what comes after a condition or a join"
    beside = sorted({each for node in nodes if _calls(node, name) for each in node.fused} - {name})
    times += f", in one operator with {', '.join(beside)}" if beside else ""
    first = f"; run before it: {', '.join(before)}" if before else ""
    return f"{name}: a scalar function on the server, {times}; {_ORDERED}{first}"


def _nodes(plan: str) -> list[_Node]:
    lines = map(_TREE.match, plan.splitlines())
    return [_Node(len(found["depth"]), found["node"]) for found in lines if found]


def _calls(node: _Node, name: str) -> list[str]:
    """The calls of a function that a node of the plan evaluates."""
    call = re.compile(rf"(?<![\w.@`])`?{re.escape(name)}`?\(", re.IGNORECASE)
    evaluation = _EVALUATION.match(node.text)
    return [_plain(each) for each in _split(evaluation["calls"]) if call.search(each)] if evaluation else []


def _below(nodes: Sequence[_Node], index: int) -> Iterator[_Node]:
    """The nodes whose output a node reads."""
    for node in nodes[index + 1 :]:
        if node.depth <= nodes[index].depth:
            return
        yield node


def _unfused(node: _Node, fused: Mapping[str, Sequence[str]]) -> _Node:
    """The node with the calls that fused ones make."""
    evaluation = _EVALUATION.match(node.text)
    calls, names = [], []
    for call in _split(evaluation["calls"]) if evaluation else []:
        name, _, rest = call.partition("(")
        arguments = _split(rest.rpartition(")")[0])
        made = [template.format(*arguments) for template in fused.get(name, ())]
        calls += made or [call]
        names += [each.partition("(")[0] for each in made]
    if evaluation is None or not names:
        return node
    return replace(node, text=node.text.replace(evaluation["calls"], ", ".join(calls)), fused=tuple(names))


def _conditions(nodes: Iterable[_Node]) -> Iterator[str]:
    for node in nodes:
        if node.text.startswith("Filter ") and not _RESULT.search(node.text):
            yield _plain(node.text.removeprefix("Filter "))
        for pushed in _PUSHED.findall(node.text):
            yield f"in the scan {pushed}"


def _plain(text: str) -> str:
    return _NUMBER.sub("", text)


def _split(calls: str) -> list[str]:
    """The expressions between commas that are outside of brackets."""
    parts, depth = [""], 0
    for letter in calls:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
