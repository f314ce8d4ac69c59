"""Statements about models, which last as long as their RemoteSession.

CREATE [OR REPLACE] [TEMPORARY] MODEL [IF NOT EXISTS] name [INPUT (columns)] [OUTPUT (columns)] [COMMENT 'text']
WITH ('function' = 'name', 'parameter or option' = 'value', ...)
ALTER MODEL [IF EXISTS] name { RENAME TO name | SET ('key' = 'value', ...) | RESET ('key', ...) }
DROP [TEMPORARY] MODEL [IF EXISTS] name
SHOW MODELS
SHOW CREATE MODEL name
{ DESCRIBE | DESC } MODEL name
"""

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField

from remote_udf.effective_options import canonical
from remote_udf.functions import FunctionKind
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import quoted
from spark_client.base.options import KNOWN_OPTIONS
from spark_client.base.types import spark_type
from spark_client.functions.arguments import require_arguments
from spark_client.models.model import (
    Definition,
    Model,
    Models,
    constant,
    model_of,
    outputs_of,
    require_scalar,
    shown_columns,
)
from spark_client.models.model_syntax import ModelStatement
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.parsing import Text

__all__ = ["run_model_statement"]

_FUNCTION = "function"
"""The option that names the function."""


def run_model_statement(functions: SqlFunctions, text: Text, *, explained: bool) -> DataFrame | None:
    """Run a statement about models, and return its rows; None for any other text.

    Raises PlanError with the position in the text, or if the text is to be explained.
    """
    statement = ModelStatement(text)
    if statement.verb is None:
        return None
    if explained:
        raise PlanError("a statement about models has no plan to explain")
    spark, models = functions.spark, functions.session.kept(Models)
    if statement.shown is not None:
        shown = _written(_known(functions, statement.shown))
        return spark.createDataFrame([(shown,)], "createmodel_stmt string")
    if statement.verb == "SHOW":
        rows = [(model.name, model.function, model.comment) for model in models.values()]
        return spark.createDataFrame(sorted(rows), "model string, function string, comment string")
    if statement.verb in ("DESCRIBE", "DESC"):
        name = statement.name()
        statement.end()
        return spark.createDataFrame(_described(functions, model_of(functions, name)), "key string, value string")
    if statement.verb == "DROP":
        exists = statement.words("IF", "EXISTS")
        name = statement.name()
        statement.end()
        if models.pop(name.casefold(), None) is None and not exists:
            raise PlanError(f"there is no model {name!r}; DROP MODEL IF EXISTS does without")
    elif statement.verb == "ALTER":
        _alter(functions, statement)
    else:
        _create(functions, statement)
    return spark.createDataFrame([], "")


def _create(functions: SqlFunctions, statement: ModelStatement) -> None:
    absent = statement.words("IF", "NOT", "EXISTS")
    name = statement.name()
    inputs = statement.columns("INPUT")
    outputs = statement.columns("OUTPUT")
    comment = statement.text() if statement.words("COMMENT") else ""
    given = statement.options("WITH", f"WITH ('{_FUNCTION}' = 'name of a function', ...)")
    statement.end()
    models = functions.session.kept(Models)
    known = models.get(name.casefold())
    if known is not None and absent:
        return
    if known is not None and not statement.replaces:
        raise PlanError(f"there is a model {known.name!r} already; CREATE OR REPLACE MODEL replaces it")
    models[name.casefold()] = _model(functions, name, Definition(given, inputs, outputs, comment))


def _alter(functions: SqlFunctions, statement: ModelStatement) -> None:
    exists = statement.words("IF", "EXISTS")
    name = statement.name()
    models = functions.session.kept(Models)
    if exists and name.casefold() not in models:
        return
    model = _known(functions, name)
    assert model.definition is not None
    given = dict(model.definition.given)
    if statement.words("RENAME", "TO"):
        name = statement.name()
        if name.casefold() in models and name.casefold() != model.name.casefold():
            raise PlanError(f"there is a model {name!r} already")
    elif statement.words("RESET"):
        for key in statement.names():
            if key not in given or key == _FUNCTION:
                others = ", ".join(f"'{each}'" for each in given if each != _FUNCTION) or "nothing"
                raise PlanError(f"model {model.name!r} has no '{key}' to reset; it has {others}")
            del given[key]
    else:
        given |= statement.options("SET", "RENAME TO, SET ('key' = 'value', ...) or RESET ('key', ...)")
        name = model.name
    statement.end()
    changed = _model(functions, name, replace(model.definition, given=given))
    del models[model.name.casefold()]
    models[name.casefold()] = changed


def _known(functions: SqlFunctions, name: str) -> Model:
    """The model that a statement declared. Raises PlanError if there is none."""
    model = model_of(functions, name)
    if model.definition is None:
        raise PlanError(f"{name!r} is a function of the server, not a model that CREATE MODEL made")
    return model


def _written(model: Model) -> str:
    """The statement that declares a model."""
    told = model.definition
    assert told is not None
    lines = [f"CREATE MODEL {quoted(model.name)}"]
    for word, columns in (("INPUT", told.inputs), ("OUTPUT", told.outputs)):
        if columns is not None:
            shown = ", ".join(f"{quoted(each.name)} {each.dataType.simpleString()}" for each in columns.fields)
            lines.append(f"{word} ({shown})")
    if told.comment:
        lines.append(f"COMMENT {_text(told.comment)}")
    options = ",\n".join(f"  {_text(key)} = {_text(value)}" for key, value in told.given.items())
    return "\n".join([*lines, f"WITH (\n{options}\n)"])


def _text(value: str) -> str:
    """A text as SQL writes it."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def _model(functions: SqlFunctions, name: str, definition: Definition) -> Model:
    """The model that a statement declares. Raises PlanError."""
    try:
        return _checked(functions, name, definition)
    except PlanError as error:
        raise PlanError(f"model {name!r}: {error}") from None


def _checked(functions: SqlFunctions, name: str, definition: Definition) -> Model:
    inputs, given = definition.inputs, dict(definition.given)
    function = given.pop(_FUNCTION, None)
    if function is None:
        raise PlanError(f"WITH lacks '{_FUNCTION}', the name of a scalar function of the server")
    function = functions.remote(function) or function
    spec = functions.spec(function)
    require_scalar(spec)
    constants = {
        parameter.name: constant(parameter.name, given.pop(parameter.name), parameter.type)
        for parameter in spec.parameters if parameter.name in given
    }  # fmt: skip
    # An option with a wrong name may be a key of a service, so its value is not shown.
    unknown = [key for key in given if not any(key in options for options in KNOWN_OPTIONS[FunctionKind.SCALAR])]
    if unknown:
        raise PlanError(
            f"'{unknown[0]}' is neither a parameter of {spec.signature} nor a call option; addresses and keys of "
            "services belong in the server's file of models"
        )
    options = canonical(given, source="WITH", known=KNOWN_OPTIONS[FunctionKind.SCALAR])
    columns = tuple(inputs.fields) if inputs is not None else ()
    model = Model(name, function, outputs_of(spec, definition.outputs, name), constants, options, definition)
    if inputs is not None:
        parameters = model.parameters(spec)[: len(columns)]
        types = dict(zip(parameters, columns, strict=False)) | {
            each.name: StructField(each.name, spark_type(_type_of(constants[each.name], each.type)))
            for each in spec.parameters if each.name in constants
        }  # fmt: skip
        if len(columns) > len(parameters):
            raise PlanError(f"INPUT has {len(columns)} columns, {spec.signature} takes {len(parameters)} besides WITH")
        given_names = [each.name for each in spec.parameters if each.name in types]
        missing = [each.name for each in spec.parameters[: len(given_names)] if each.name not in types]
        if missing:
            raise PlanError(f"parameter '{missing[0]}' precedes '{given_names[-1]}', so it needs a value or a column")
        require_arguments(spec, [types[name] for name in given_names])
    return model


def _type_of(value: object, type_: pa.DataType) -> pa.DataType:
    """The type of a constant: its own if the parameter takes one of several types."""
    return pa.scalar(value).type if pa.types.is_union(type_) else type_


def _described(functions: SqlFunctions, model: Model) -> list[tuple[str, str]]:
    spec = functions.spec(model.function)
    inputs = shown_columns(model.inputs) or ", ".join(model.parameters(spec))
    parts = {"function": spec.signature, "input": inputs}
    parts |= {"output": ", ".join(model.outputs), "comment": model.comment}
    return [*parts.items(), *((key, str(value)) for key, value in {**model.constants, **model.options}.items())]
