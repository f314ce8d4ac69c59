"""Estimates what the calls of a query cost, from its tree: Spark's part runs, and no function is called.

A call is estimated over the rows of its SELECT that pass the conditions without calls. If another call or a clause
after it may drop rows, that is what it costs at most.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from sqlglot import exp

from remote_udf.amounts import add_amounts
from remote_udf.errors import ErrorCode
from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.base.root_cause import root_cause
from spark_client.base.statistics import CallCost, amounts_text
from spark_client.functions.registered_names import shown
from spark_client.models.estimate import NO_COSTS, Estimate, counted, estimated
from spark_client.models.model_calls import predictions_in
from spark_client.sql.fewer_calls.explaining import calls_in
from spark_client.sql.rows.calls import is_scalar, walk_query
from spark_client.sql.rows.functions import SqlFunctions, SqlSession
from spark_client.sql.rows.scope import Scope
from spark_client.sql.text.nodes import Node, conditions_of, set_conditions
from spark_client.sql.text.writers import canonical

__all__ = ["with_estimates"]

_DROPPING = ("group", "having", "qualify", "distinct", "limit", "offset")
"""Clauses of a SELECT because of which a call may be made for fewer rows than the SELECT reads."""


def with_estimates(scope: Scope, tree: Node) -> Node:
    """The same tree. A line per call, and one for all calls together, are added to the stages."""
    scope.stages += _lines(scope.as_is(), tree.transform(_with_own_name))
    return tree


def _lines(scope: Scope, tree: Node) -> list[str]:
    """A line per call, and one for all calls together."""
    functions, session = scope.functions, scope.functions.session
    lines: list[str] = []
    total: dict[str, float] = {}
    calls, seconds, whole = 0, 0.0, True
    for select in tree.find_all(exp.Select):
        # Of equal calls one.
        for text, call in {canonical(node): node for node in _calls(functions, select)}.items():
            found = _estimate(scope, select, call)
            if isinstance(found, str):
                lines.append(f"estimate of {text}: none, because {found}")
                whole = False
                continue
            mean = session.cost_of(found.function)
            once = _amounts(found.amounts, found.distinct_calls, mean)
            every = _amounts(found.amounts_without_cache, found.calls, mean)
            least = "at most " if _may_be_fewer(functions, select, call) else ""
            time = mean.of_a_row().seconds * found.calls if mean.rows else math.nan
            lines.append(
                f"estimate of {text}: {least}{found.rows:,} rows, {found.calls:,} calls: {amounts_text(every)}; "
                f"{found.distinct_calls:,} of them different: {amounts_text(once)}; {_time(session, time)}"
            )
            add_amounts(total, every)
            calls, seconds = calls + found.calls, seconds + time
    kinds = {name: functions.kind(name) for name in {node.name for node in tree.find_all(exp.Anonymous)}}
    for name in sorted(name for name, kind in kinds.items() if kind not in (None, FunctionKind.SCALAR)):
        lines.append(f"estimate of {name}: none, because {NO_COSTS}")
        whole = False
    for call in predictions_in(tree):
        lines.append(
            f"estimate of {canonical(call)}: none, because the model is called for each row of its table; pass "
            "that table and the function of the model to remote.estimate"
        )
        whole = False
    if lines:
        all_ = "all calls" if whole else "the calls that have one"
        lines.append(f"estimate of {all_}: {calls:,} calls: {amounts_text(total)}; {_time(session, seconds)}")
    return lines


def _estimate(scope: Scope, select: Node, call: Node) -> Estimate | str:
    """The estimate of one call, or why there is none."""
    functions, session = scope.functions, scope.functions.session
    if any(node is not call for node in _calls(functions, call)):
        return "an argument is the value of another call"
    function = functions.scalar(call.name)
    try:
        rows, names = _arguments(scope, select, call)
        if rows.isStreaming:
            return "the rows of a stream are not known"
        if needed := calls_in(session, rows):
            return f"its rows need calls of {', '.join(needed)}, which would be made"
        try:
            return estimated(function.spark, function.config, rows, function(*names), lambda frame: ())
        except PySparkException as error:
            # The declaration of the function has no cost.
            if ErrorCode.INVALID_OPTION.value not in root_cause(error):
                raise
            return counted(function.spec, rows)
    except (PySparkException, PlanError) as error:
        return " ".join(root_cause(error).split())[:200]


def _amounts(declared: Mapping[str, float], calls: int, mean: CallCost) -> dict[str, float]:
    """What the declaration of the function says; without that, what calls have cost on average."""
    return dict(declared) or {unit: amount * calls for unit, amount in mean.of_a_row().spent.items()}


def _time(session: SqlSession, seconds: float) -> str:
    if math.isnan(seconds):
        return "time unknown, because this session has no measurement of it"
    at_once = "" if session.tasks is None else f", {seconds / session.tasks:.3g} s with {session.tasks} tasks at once"
    return f"{seconds:.3g} s of tasks{at_once}"


def _with_own_name(node: Node) -> Node:
    if isinstance(node, exp.Anonymous) and shown(node.name) != node.name:
        node.set("this", exp.to_identifier(shown(node.name), quoted=True))
    return node


def _calls(functions: SqlFunctions, tree: Node) -> Iterator[Node]:
    """The calls of scalar functions in a tree, without queries inside it."""
    return (node for node in walk_query(tree) if is_scalar(node, functions))


def _arguments(scope: Scope, select: Node, call: Node) -> tuple[DataFrame, Sequence[str]]:
    """The rows for which a call is made, with its arguments as columns."""
    source = select.copy()
    set_conditions(source, [part for part in conditions_of(select) if not _has_call(scope.functions, part)])
    names = [f"argument_{place}" for place in range(len(call.expressions))]
    items = dict(zip(names, call.expressions, strict=True))
    own = select.args.get("with_")
    visible = scope.around(select).inside(own.expressions if own is not None else ())
    return visible.source(source).base(items), names


def _has_call(functions: SqlFunctions, tree: Node) -> bool:
    return any(True for _ in _calls(functions, tree))


def _may_be_fewer(functions: SqlFunctions, select: Node, call: Node) -> bool:
    """Whether the call may be made for fewer rows: another call in WHERE comes first, or the SELECT drops rows."""
    remote = [part for part in conditions_of(select) if _has_call(functions, part)]
    first = not remote or canonical(call) in {canonical(node) for node in _calls(functions, remote[0])}
    return not first or any(select.args.get(part) for part in _DROPPING) or select.parent_select is not None
