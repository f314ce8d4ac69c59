"""`ML_PREDICT(TABLE t, MODEL m, DESCRIPTOR(a, b))` in FROM: the rows of a table with the results of a model (FLIP-525).

The call is replaced by the DataFrame of the table with the model's columns: one call per row, whatever the query
around it selects or filters. Arguments are passed by position or by name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from remote_udf.options import SCALAR_OPTIONS
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import error_column, quoted
from spark_client.models.model import Model, literal, model_of
from spark_client.planning.rows.planner import plan_with_columns
from spark_client.sql.rows.flink_options import configured
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.table_calls import by_name, call_of_relation, described, plain_table, put_in_place
from spark_client.sql.text.nodes import Node

__all__ = ["given_model", "predicted", "predictions_in", "put_prediction"]

_NAME = "ML_PREDICT"
_PARAMETERS = ("INPUT", "MODEL", "ARGS", "CONFIG")


def predictions_in(tree: Node) -> Iterator[exp.Anonymous]:
    """The calls of ML_PREDICT in a tree."""
    calls = (call_of_relation(node) for node in tree.walk())
    return (call for call in calls if call is not None and call.name.upper() == _NAME)


def put_prediction(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by the DataFrame of its result."""
    given = by_name(call, _PARAMETERS, ("CONFIG",))
    table, columns = plain_table(call, "INPUT", given), described(given["ARGS"])
    if columns is None:
        raise PlanError(f"{_NAME}: ARGS is DESCRIPTOR(column, ...)")
    model = given_model(scope, call, given)
    frame = predicted(scope, call, without_time(scope.run(table)), model, columns)
    scope.stages.append(f"{_NAME} with {model.name}: 1 call of {model.function} per row")
    put_in_place(scope, node, frame, _NAME.lower())


def given_model(scope: Scope, call: exp.Anonymous, given: Mapping[str, Node]) -> Model:
    """The model of a call, with the options of its CONFIG. Raises PlanError."""
    value, name = given["MODEL"], call.name.upper()
    if not isinstance(value, exp.Anonymous) or value.name.upper() != "MODEL":
        raise PlanError(f"{name}: MODEL is the word MODEL and the name of a model")
    model = model_of(scope.functions, value.expressions[0].name)
    return replace(model, options={**model.options, **configured(scope, name, given.get("CONFIG"), SCALAR_OPTIONS)})


def predicted(
    scope: Scope, call: exp.Anonymous, frame: DataFrame, model: Model, columns: Sequence[str]
) -> DataFrame:  # fmt: skip
    """The rows with the columns of the model's results, which follow those of the table. Raises PlanError."""
    where = call.name.upper()
    # The options belong to the operator: a dead letter holds the whole row.
    function = scope.functions.with_options(model.function, {})
    parameters = model.parameters(function.spec)
    if len(columns) > len(parameters) or (model.inputs and len(columns) != len(model.inputs)):
        takes = len(model.inputs) or f"at most {len(parameters)}"
        raise PlanError(f"{where}: model {model.name!r} takes {takes} columns, DESCRIPTOR has {len(columns)}")
    taken = scope.identifiers.keys(frame.columns)
    missing = [name for name in columns if scope.key(name) not in taken]
    if missing:
        raise PlanError(f"{where}: the table has no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    types = {each.name: each.type for each in function.spec.parameters}
    result = function(
        **{name: quoted(column) for name, column in zip(parameters, columns, strict=False)},
        **{name: literal(value, types[name]) for name, value in model.constants.items()},
    )
    names: list[str] = []
    for output in (*model.outputs, error_column(model.name)):
        names.append(scope.identifiers.free(output, taken))
        taken.add(scope.key(names[-1]))
    whole = scope.hidden("prediction")
    predicted = plan_with_columns(scope.spark, function.config, frame, {whole: result}, model.options)
    fields = function.spec.result if pa.types.is_struct(function.spec.result) else ()
    added = [F.col(whole)[field.name] for field in fields] or [F.col(whole)]
    if error_column(whole) in predicted.columns:
        added.append(F.col(error_column(whole)))
    named = [column.alias(name) for column, name in zip(added, names, strict=False)]
    return predicted.select("*", *named).drop(whole, error_column(whole))
