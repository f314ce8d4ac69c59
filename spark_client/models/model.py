"""Model: a remote scalar function with constant arguments and options, under the name that SQL gives it (FLIP-437)."""

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from remote_udf.functions import FunctionKind, FunctionSpec
from remote_udf.types import spelled
from spark_client.base.errors import PlanError, UnknownFunction
from spark_client.base.types import spark_type
from spark_client.sql.rows.functions import SqlFunctions

__all__ = [
    "Definition",
    "Model",
    "Models",
    "constant",
    "literal",
    "model_of",
    "outputs_of",
    "require_scalar",
    "shown_columns",
]


@dataclass(frozen=True)
class Definition:
    """What CREATE MODEL says of a model."""

    given: Mapping[str, str]
    """The keys and values of WITH."""
    inputs: StructType | None = None
    outputs: StructType | None = None
    comment: str = ""


@dataclass(frozen=True)
class Model:
    """A function with the arguments that do not depend on the row."""

    name: str
    function: str
    """ "name" or "name@version"."""
    outputs: tuple[str, ...]
    """The columns of a result: one, or one for each field of a struct."""
    constants: Mapping[str, object] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    definition: Definition | None = None
    """None for a function that no statement declared as a model."""

    @property
    def inputs(self) -> Sequence[StructField]:
        """The columns that it was declared with; empty if it was declared without."""
        return self.definition.inputs.fields if self.definition and self.definition.inputs else ()

    @property
    def comment(self) -> str:
        """The comment that it was declared with."""
        return self.definition.comment if self.definition else ""

    def parameters(self, spec: FunctionSpec) -> list[str]:
        """The parameters that get columns, in order."""
        return [each.name for each in spec.parameters if each.name not in self.constants]


class Models(dict[str, Model]):
    """The models of one session, by case-folded name."""


def model_of(functions: SqlFunctions, name: str) -> Model:
    """The model with this name, or the scalar function with this name. Raises PlanError if there is neither."""
    models = functions.session.kept(Models)
    model = models.get(name.casefold())
    if model is not None:
        return model
    try:
        spec = functions.spec(name)
    except UnknownFunction as error:
        known = ", ".join(model.name for model in models.values()) or "none"
        raise PlanError(f"there is no model {name!r}: this session has {known}; as a function, {error}") from None
    require_scalar(spec)
    return Model(name, spec.key, outputs_of(spec, None, name))


def require_scalar(spec: FunctionSpec) -> None:
    """Raises PlanError if a function cannot be a model."""
    if spec.kind is not FunctionKind.SCALAR:
        raise PlanError(f"{spec.key} is a function of kind {spec.kind}; a model is a scalar function")


def outputs_of(spec: FunctionSpec, declared: StructType | None, name: str) -> tuple[str, ...]:
    """The names of the result's columns. Raises PlanError if the declaration has other types than the function."""
    result = spark_type(spec.result)
    fields = result.fields if isinstance(result, StructType) else [StructField(name, result)]
    if declared is None:
        return tuple(each.name for each in fields)
    if [each.dataType.simpleString() for each in declared.fields] != [each.dataType.simpleString() for each in fields]:
        found, expected = shown_columns(declared.fields), shown_columns(fields)
        raise PlanError(f"OUTPUT is ({found}), but {spec.signature} returns ({expected})")
    return tuple(each.name for each in declared.fields)


def shown_columns(fields: Sequence[StructField]) -> str:
    """The names and the types of columns, as Spark's SQL writes them."""
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in fields)


def constant(name: str, text: str, type_: pa.DataType) -> object:
    """The value of a text: itself for a parameter of type string, otherwise the text is JSON. Raises PlanError."""
    try:
        value = text if pa.types.is_string(type_) else json.loads(text)
        literal(value, type_)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        raise PlanError(
            f"parameter '{name}' has type {spelled(type_)}, and its value is not JSON of this type: structs and maps "
            "are objects, dates and timestamps are texts in the form of ISO 8601"
        ) from None
    return value


def literal(value: object, type_: pa.DataType) -> Column:
    """A column with a value of JSON, in the type of the parameter.

    Raises ValueError, TypeError, ArithmeticError or ArrowException if the value is not of the type.
    """
    if pa.types.is_union(type_):  # the parameter takes one of several types
        pa.scalar(value)
        return F.lit(value)
    column = F.lit(None) if value is None else _present(value, type_)
    return column.cast(spark_type(type_))


def _present(value: Any, type_: pa.DataType) -> Column:
    types = pa.types
    if isinstance(value, bool) and not types.is_boolean(type_):
        raise TypeError("true and false are no numbers")
    if types.is_list(type_):
        return F.array(*[literal(each, type_.value_type) for each in _of(list, value)])
    if types.is_struct(type_):
        parts = {field.name: field.type for field in type_}
        if unknown := _of(dict, value).keys() - parts.keys():
            raise ValueError(f"unknown fields {unknown}")
        return F.struct(*[literal(value.get(name), part).alias(name) for name, part in parts.items()])
    if types.is_map(type_):
        pairs = _of(dict, value).items()
        return F.create_map(*[each for k, v in pairs for each in (_key(k, type_), literal(v, type_.item_type))])
    if types.is_date(type_):
        return F.lit(dt.date.fromisoformat(_of(str, value)).isoformat())
    if types.is_timestamp(type_):
        time = dt.datetime.fromisoformat(_of(str, value))
        if (time.tzinfo is None) != (type_.tz is None):
            raise ValueError("a timestamp has a zone, a timestamp_ntz has none")
        return F.lit(time.isoformat())
    if types.is_decimal(type_):
        return F.lit(str(pa.scalar(Decimal(str(value)), type_).as_py()))
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_string(type_):
        # Arrow would make 1 of 1.5.
        return F.lit(pa.scalar(_of(int, value) if types.is_integer(type_) else value, type_).as_py())
    raise TypeError(f"JSON has no {type_}")


def _key(text: str, type_: pa.MapType) -> Column:
    """A key of a map, which is a text in JSON whatever its type."""
    number = pa.types.is_integer(type_.key_type) or pa.types.is_floating(type_.key_type)
    return literal(json.loads(text) if number else text, type_.key_type)


def _of(expected: type, value: Any) -> Any:
    if not isinstance(value, expected):
        raise TypeError(f"a {expected.__name__} is expected")
    return value
