"""Statement sets: `EXECUTE STATEMENT SET BEGIN INSERT INTO a ...; INSERT INTO b ...; END` (FLIP-440).

Calls of process table functions with one `uid` are one operator with several outputs. In batch its result is computed
once and kept while the statements run. On a stream the operator is one streaming query, in which each micro-batch runs
all the statements.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from spark_client.base.errors import PlanError
from spark_client.sql.once_inserted import SetInsert, inserting, statement_of
from spark_client.sql.rows.scope import HIDDEN, Scope
from spark_client.sql.rows.shared_operators import SharedOperators
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text, error_at, place_of_token
from spark_client.sql.text.writers import canonical

__all__ = ["BEGINNINGS", "query_of", "run_set", "statements_of"]

_STATEMENTS = (TokenType.INSERT, TokenType.CREATE)
_QUERIES = (TokenType.SELECT, TokenType.WITH, TokenType.FROM, TokenType.VALUES)
BEGINNINGS = (*_QUERIES, *_STATEMENTS, TokenType.TABLE, TokenType.L_PAREN)
"""The first tokens of queries, and of statements with a query."""

_SETS = ("EXECUTE STATEMENT SET BEGIN", "BEGIN STATEMENT SET ;")
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_ROWS = "{rows}"
_PER_ROW = {"kind", "hint", "expressions", "from_", "where", "operation_modifiers"}
"""Parts of a SELECT that process each row independently."""


def statements_of(text: Text) -> list[Text] | None:
    """The statements of a set, each with its position in the text; None for any other text.

    Raises PlanError, with the position, if END is missing or if a statement is not an INSERT.
    """
    beginning, inside = text.tokens[:4], text.tokens[4:]
    if " ".join(token.text.upper() for token in beginning) not in _SETS:
        return None
    where = place_of_token(beginning[0])
    if not inside or inside[-1].text.upper() != "END":
        raise PlanError(f"{where}a statement set must end with END")
    found = []
    for part in _between_semicolons(inside[:-1]):
        statement, first = replace(text, part=part), part[0]
        scoped = first.token_type is TokenType.WITH and isinstance(statement.tree, exp.Insert)
        if first.token_type is not TokenType.INSERT and not scoped:
            what = f"a statement set takes INSERT statements, not {first.text.upper()}"
            raise PlanError(f"{place_of_token(first)}{what}")
        found.append(statement)
    if not found:
        raise PlanError(f"{where}a statement set needs at least one INSERT")
    return found


def query_of(text: Text) -> Text:
    """The query of an INSERT or a CREATE, which Spark would run at once; any other query and statement set unchanged.

    Raises PlanError for a statement that has no query, or several.
    """
    tokens = text.tokens
    if not tokens or statements_of(text) is not None:
        return text
    depth, head = 0, None
    for index, token in enumerate(tokens):
        depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
        after_with = tokens[0].token_type is TokenType.WITH and tokens[index - 1].token_type is TokenType.R_PAREN
        if not depth and head is None and (not index or after_with) and token.token_type in _STATEMENTS:
            head = index
        elif not depth and index and token.token_type in _QUERIES:
            if head is None:
                break
            return replace(text, part=[*tokens[:head], *tokens[index:]], cut=tokens[head].start)
    several = tokens[0].token_type is TokenType.FROM and isinstance(text.tree, exp.MultitableInserts)
    if head is None and tokens[0].token_type in BEGINNINGS and not several:
        return text
    raise PlanError(f"{tokens[0].text.upper()} without a query has no plan to explain")


def run_set(shared: SharedOperators, trees: Sequence[tuple[Scope, Node]], stages: list[str] | None) -> DataFrame:
    """Run rewritten statements. In batch, return an empty DataFrame; on streams, a row per query that was started.

    With `stages` nothing is run: the stages are described there, and the last query is returned.
    """
    spark = trees[0][0].spark
    if stages is not None:
        used = [_shared_uid(scope, shared, tree) for scope, tree in trees]
        stages += [f"uid {uid!r}: one operator, {used.count(uid)} outputs, computed once" for uid in shared.frames()]
        scope, tree = trees[-1]
        return scope.run(tree.expression)
    if any(frame.isStreaming for frame in shared.frames().values()):
        return _run_streams(shared, trees)
    _run_tables(shared, trees)
    return spark.createDataFrame([], "")


def _shared_uid(scope: Scope, shared: SharedOperators, tree: Node) -> str | None:
    """The uid of the operator that a statement reads; None if it reads none."""
    frames = [scope.frame_of(table) for table in tree.find_all(exp.Table)]
    return next((uid for uid, known in shared.frames().items() if any(known is frame for frame in frames)), None)


def _run_tables(shared: SharedOperators, trees: Sequence[tuple[Scope, Node]]) -> None:
    """Run the statements one after another, in the order of the text."""
    kept = [result.persist() for result in shared.results()]
    try:
        for scope, tree in trees:
            scope.run(tree)
    finally:
        for result in kept:
            result.unpersist()


def _run_streams(shared: SharedOperators, trees: Sequence[tuple[Scope, Node]]) -> DataFrame:
    """Start a streaming query per operator, named by its uid. Return a row for each: `name`, `id`.

    Raises PlanError if no checkpoint location is set, or if a statement does more than select from one call with a uid,
    row by row.
    """
    spark = trees[0][0].spark
    checkpoints = spark.conf.get(_CHECKPOINTS, None)
    if not checkpoints:
        raise PlanError(f"a statement set on a stream keeps its state below {_CHECKPOINTS}: set it")
    inserts: dict[str, list[SetInsert]] = {}
    for scope, tree in trees:
        uid, statement = _of_rows(scope, shared, tree)
        inserts.setdefault(uid, []).append(statement)
    started = []
    for uid, statements in inserts.items():
        writer = shared.frames()[uid].writeStream.queryName(uid)
        query = writer.foreachBatch(inserting(statements, f"{checkpoints}/{uid}")).start()
        started.append((uid, query.id))
    return spark.createDataFrame(started, "name string, id string")


def _of_rows(scope: Scope, shared: SharedOperators, insert: Node) -> tuple[str, SetInsert]:
    """The uid of the operator whose rows are inserted, and the statement with `{rows}` in its place."""
    query = insert.expression
    select = query if isinstance(query, exp.Select) else None
    table = select.args["from_"].this if select is not None and select.args.get("from_") is not None else None
    frame = scope.frame_of(table) if isinstance(table, exp.Table) else None
    uid = next((uid for uid, known in shared.frames().items() if known is frame), None)
    if uid is None or select is None or table is None:
        raise error_at(
            insert, "on a stream a statement set inserts SELECT ... FROM a process table function with a uid; start "
            "any other query with writeStream"
        )  # fmt: skip
    beyond = [part for part, value in select.args.items() if value and part not in _PER_ROW]
    beyond += ["joins"] if table.args.get("joins") or table.args.get("laterals") else []
    beyond += [
        canonical(node) for node in select.walk()
        if isinstance(node, (exp.Window, exp.Subquery, exp.Exists))
        or (isinstance(node, exp.Anonymous) and scope.functions.is_built_in_aggregate(node.name))
    ]  # fmt: skip
    if beyond:
        raise error_at(
            insert, f"on a stream the statements of a set may use only SELECT and WHERE, found "
            f"{beyond[0].strip('_')}; every micro-batch would be a separate table"
        )  # fmt: skip
    statement = statement_of(scope.spark, insert)
    text = statement.text.replace("{", "{{").replace("}", "}}").replace(table.name, _ROWS)
    if HIDDEN in text:
        raise error_at(insert, "on a stream the statements of a set cannot use fields in braces")
    return uid, replace(statement, text=text)


def _between_semicolons(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    for ends, part in itertools.groupby(tokens, lambda token: token.token_type is TokenType.SEMICOLON):
        if not ends:
            yield list(part)
