"""The functions of models in FROM (FLIP-525).

`ML_PREDICT(TABLE t, MODEL m, DESCRIPTOR(a, b))` gives the rows of a table with the results of a model: the call is
replaced by the DataFrame of the table with the model's columns.

`ML_EVALUATE(TABLE t, MODEL m, DESCRIPTOR(label), DESCRIPTOR(a), 'classification')` tells how good a model is: the call
is replaced by one row with a map of metrics, which Spark computes of labels and results.

There is one call of the model per row, whatever the query around it selects or filters. Arguments are passed by
position or by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NumericType, StringType
from sqlglot import exp

from remote_udf.options import SCALAR_OPTIONS
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import error_column, quoted
from spark_client.models.model import Model, literal, model_of
from spark_client.planning.rows.planner import plan_with_columns
from spark_client.sql.rows.flink_options import configured
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.stream_times import without_time
from spark_client.sql.rows.table_calls import (
    by_name,
    call_of_relation,
    described,
    evaluated,
    one_column,
    plain_table,
    put_in_place,
)
from spark_client.sql.text.nodes import Node

__all__ = ["predictions_in", "put_evaluation", "put_prediction"]

_PREDICT, _EVALUATE = "ML_PREDICT", "ML_EVALUATE"
_OF_PREDICT = ("INPUT", "MODEL", "ARGS", "CONFIG")
_OF_EVALUATE = ("INPUT", "MODEL", "LABEL", "ARGS", "TASK", "CONFIG")
"""The parameters of the two."""
Metrics = Mapping[str, Column]


def predictions_in(tree: Node) -> Iterator[exp.Anonymous]:
    """The calls of ML_PREDICT in a tree."""
    calls = (call_of_relation(node) for node in tree.walk())
    return (call for call in calls if call is not None and call.name.upper() == _PREDICT)


def put_prediction(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by the DataFrame of its result."""
    given = by_name(call, _OF_PREDICT, ("CONFIG",))
    table, columns = plain_table(call, "INPUT", given), _arguments(call, given)
    model = _given_model(scope, call, given)
    frame = _predicted(scope, call, without_time(scope.run(table)), model, columns)
    scope.stages.append(f"{_PREDICT} with {model.name}: 1 call of {model.function} per row")
    put_in_place(scope, node, frame, _PREDICT.lower())


def put_evaluation(scope: Scope, node: Node, call: exp.Anonymous) -> None:
    """Replace a call by the DataFrame of its metrics. Raises PlanError."""
    given = by_name(call, _OF_EVALUATE, ("CONFIG",))
    label, columns = one_column(_EVALUATE, "LABEL", given["LABEL"]), _arguments(call, given)
    task = evaluated(scope, given["TASK"], pa.string())
    if not isinstance(task, str) or task.lower() not in _TASKS:
        raise PlanError(f"{_EVALUATE}: TASK is one of {', '.join(map(repr, _TASKS))}, not {task!r}")
    model, frame = _given_model(scope, call, given), without_time(scope.run(plain_table(call, "INPUT", given)))
    if len(model.outputs) != 1:
        raise PlanError(f"{_EVALUATE}: model {model.name!r} returns {', '.join(model.outputs)}; one column is compared")
    if frame.isStreaming:
        raise PlanError(f"{_EVALUATE}: INPUT is a stream; evaluate a table")
    place = next((at for at, name in enumerate(frame.columns) if scope.identifiers.same(name, label)), None)
    if place is None:
        raise PlanError(f"{_EVALUATE}: the table has no column {label!r}; it has {', '.join(frame.columns)}")
    types, summary = _TASKS[task.lower()]
    results = _predicted(scope, call, frame, model, columns)
    names = results.columns[place], results.columns[len(frame.columns)]
    found = [results.schema[name].dataType for name in names]
    if not (all(isinstance(type_, types) for type_ in found) or (types is DataType and found[0] == found[1])):
        raise PlanError(
            f"{_EVALUATE}: label {names[0]!r} is {found[0].simpleString()} and the result of {model.name!r} is "
            f"{found[1].simpleString()}; {task} compares {_EXPECTED[types]}"
        )
    pairs = results.select(F.col(quoted(names[0])).alias("label"), F.col(quoted(names[1])).alias("result"))
    scope.stages.append(f"{_EVALUATE} with {model.name}: 1 call of {model.function} per row, compared by Spark")
    put_in_place(scope, node, summary(pairs), _EVALUATE.lower())


def _arguments(call: exp.Anonymous, given: Mapping[str, Node]) -> list[str]:
    """The columns that a model gets, in order. Raises PlanError."""
    columns = described(given["ARGS"])
    if columns is None:
        raise PlanError(f"{call.name.upper()}: ARGS is DESCRIPTOR(column, ...)")
    return columns


def _given_model(scope: Scope, call: exp.Anonymous, given: Mapping[str, Node]) -> Model:
    """The model of a call, with the options of its CONFIG. Raises PlanError."""
    value, name = given["MODEL"], call.name.upper()
    if not isinstance(value, exp.Anonymous) or value.name.upper() != "MODEL":
        raise PlanError(f"{name}: MODEL is the word MODEL and the name of a model")
    model = model_of(scope.functions, value.expressions[0].name)
    return replace(model, options={**model.options, **configured(scope, name, given.get("CONFIG"), SCALAR_OPTIONS)})


def _predicted(
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


def _label() -> Column:
    return F.col("label")


def _result() -> Column:
    return F.col("result")


def _mapped(frame: DataFrame, metrics: Metrics) -> DataFrame:
    parts = [part for name, value in metrics.items() for part in (F.lit(name), value.cast("double"))]
    return frame.agg(F.create_map(*parts).alias("result"))


def _whole(frame: DataFrame, metrics: Metrics) -> DataFrame:
    """The metrics over rows with a label and a result, and the number of rows with and without them."""
    both = _label().isNotNull() & _result().isNotNull()
    return _mapped(frame, {**metrics, "rows": F.count_if(both), "skipped": F.count_if(~both)})


def _regression(frame: DataFrame) -> DataFrame:
    label, result = _label().cast("double"), F.when(_label().isNotNull(), _result().cast("double"))
    error = label - result
    squares = F.avg(error * error)
    spread = F.var_pop(F.when(result.isNotNull(), label))
    return _whole(frame, {
        "mae": F.avg(F.abs(error)), "mse": squares, "rmse": F.sqrt(squares),
        "r2": F.when(spread > 0, 1 - squares / spread),
    })  # fmt: skip


def _classification(frame: DataFrame) -> DataFrame:
    """Precision, recall and F1 are means over the classes that are a label or a result."""
    counts = ("actual", "said", "right", "skipped")

    def row(of: Column, **given: Column) -> Column:
        return F.struct(of.alias("class"), *(given.get(name, F.lit(0)).cast("bigint").alias(name) for name in counts))

    one = F.lit(1)
    known = F.array(row(_label(), actual=one, right=(_label() == _result())), row(_result(), said=one))
    unknown = F.array(row(F.nullif(_label(), _label()), skipped=one))
    rows = F.when(_label().isNotNull() & _result().isNotNull(), known).otherwise(unknown)
    classes = frame.select(F.inline(rows)).groupBy("class").agg(*(F.sum(name).alias(name) for name in counts))
    actual, said, right, skipped = map(F.col, counts)
    both = actual + said  # 0 for the rows that are skipped
    return _mapped(classes, {
        "accuracy": F.sum(right) / F.sum(actual),
        "precision": F.avg(F.when(said > 0, right / said).when(both > 0, 0)),
        "recall": F.avg(F.when(actual > 0, right / actual).when(both > 0, 0)),
        "f1": F.avg(F.when(both > 0, 2 * right / both)),
        "rows": F.coalesce(F.sum(actual), F.lit(0)), "skipped": F.coalesce(F.sum(skipped), F.lit(0)),
    })  # fmt: skip


def _text(frame: DataFrame) -> DataFrame:
    """ROUGE-1: the words that label and result share, as a part of those of the result and of the label."""
    label, result = (F.split(F.lower(F.trim(text)), r"\s+") for text in (_label(), _result()))

    def shared(one: Column, other: Column) -> Column:
        def times(words: Column, word: Column) -> Column:
            return F.size(F.filter(words, lambda each: each == word))

        counts = F.transform(F.array_distinct(one), lambda word: F.least(times(one, word), times(other, word)))
        return F.aggregate(counts, F.lit(0), lambda total, each: total + each)

    common = shared(label, result)
    ratios = {
        "precision": common / F.size(result), "recall": common / F.size(label),
        "f1": 2 * common / (F.size(result) + F.size(label)),
    }  # fmt: skip
    known = _label().isNotNull() & _result().isNotNull()
    return _whole(frame, {
        "exact_match": F.avg((_label() == _result()).cast("double")),
        **{f"rouge1_{name}": F.avg(F.when(known, ratio)) for name, ratio in ratios.items()},
    })  # fmt: skip


_EXPECTED: Mapping[type[DataType], str] = {
    NumericType: "numbers", DataType: "values of one type", StringType: "texts"
}  # fmt: skip
_TASKS: Mapping[str, tuple[type[DataType], Callable[[DataFrame], DataFrame]]] = {
    "classification": (DataType, _classification), "regression": (NumericType, _regression),
    "text_generation": (StringType, _text),
}  # fmt: skip
"""By task: the types of labels and results, and their metrics."""
