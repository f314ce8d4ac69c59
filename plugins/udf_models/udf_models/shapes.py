"""Shape: what the answers of complete_json have to be, as a JSON schema and as a type of Spark."""

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

from remote_udf.ddl import parse_type
from remote_udf.errors import UnsupportedType
from remote_udf.types import spelled
from udf_server import DeclarationError
from udf_server.declaring.annotations import codecs_for

__all__ = ["InvalidAnswer", "Shape", "schema_of", "shape_of"]

_SIMPLE = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
DEPTH = 20
"""Nesting of a schema at most; one that refers to itself has no end."""


class InvalidAnswer(Exception):
    """An answer does not have the shape. The message names the rule and has nothing of the answer."""


@dataclass(frozen=True)
class Shape:
    """The schema of answers and the type of their values."""

    schema: Mapping[str, Any]
    type: pa.DataType

    def value(self, found: Any) -> Any:
        """The value of a parsed answer. Raises InvalidAnswer."""
        # An empty registry: nothing that a schema refers to is fetched.
        validator = Draft202012Validator(self.schema, registry=Registry())
        try:
            error = next(iter(validator.iter_errors(found)), None)
        except RecursionError:
            raise InvalidAnswer("it is nested too deeply") from None
        if error is not None:
            raise InvalidAnswer(f"it breaks the rule {'/'.join(map(str, error.absolute_schema_path))}")
        return _value(found, self.type)


def shape_of(table: Any, folder: Path) -> Shape:
    """Return the shape that a table of the file describes by `returns`, `schema` or `dataclass`.

    Raises:
        ValueError: The table is not valid.
    """
    kinds = {"returns", "schema", "dataclass"}
    if not isinstance(table, dict) or len(table) != 1 or not table.keys() <= kinds:
        raise ValueError("expected one of returns, schema and dataclass")
    ((kind, text),) = table.items()
    if not isinstance(text, str):
        raise ValueError(f"{kind}: {text!r} is not text")
    try:
        if kind == "schema":
            shape = _of_schema(json.loads((folder / text).read_text("utf-8")))
        else:
            type_ = parse_type(f"struct<{text}>") if kind == "returns" else _of_dataclass(text)
            shape = Shape(schema_of(type_), type_)
        if not shape.type.num_fields:
            raise ValueError(f"{text!r} has no fields")
        _require_names(shape.type)
        return shape
    except (OSError, ValueError, UnsupportedType, DeclarationError) as error:
        raise ValueError(f"{kind}: {error}") from None


def schema_of(type_: pa.DataType) -> dict[str, Any]:
    """Return the JSON schema of a type. Fields of structs are required, and may be null.

    Raises:
        ValueError: JSON has no such values.
    """
    if pa.types.is_struct(type_):
        properties = {field.name: _or_null(schema_of(field.type)) for field in type_}
        return {
            "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
        }  # fmt: skip
    if pa.types.is_list(type_):
        return {"type": "array", "items": schema_of(type_.value_type)}
    if pa.types.is_integer(type_):
        return {"type": "integer"}
    if pa.types.is_floating(type_):
        return {"type": "number"}
    if type_ in (pa.string(), pa.bool_()):
        return {"type": "string" if type_ == pa.string() else "boolean"}
    raise ValueError(
        f"{spelled(type_)} is not supported; use string, boolean, integers, float, double, array and struct"
    )


def _require_names(type_: pa.DataType) -> None:
    """Raise ValueError if a struct has fields that Spark does not tell apart."""
    names: dict[str, str] = {}
    for field in (type_.field(index) for index in range(type_.num_fields)):
        if (name := field.name.lower()) in names:
            raise ValueError(f"Spark takes the names {names[name]!r} and {field.name!r} for the same; rename one field")
        names[name] = field.name
        _require_names(field.type)


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "type": [schema["type"], "null"]}


def _of_dataclass(text: str) -> pa.DataType:
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"{text!r} cannot be imported; expected module:Class") from None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"{text!r} is not a dataclass")
    return codecs_for(found, text)[0].type


def _of_schema(schema: Any) -> Shape:
    if not isinstance(schema, dict):
        raise ValueError("the JSON schema is not an object")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"the JSON schema is not valid: {error.message}") from None
    type_ = _type(schema, schema.get("$defs", {}), "$", 0)
    if not pa.types.is_struct(type_):
        raise ValueError("the JSON schema is not of an object")
    return Shape(schema, type_)


def _type(schema: Any, definitions: Mapping[str, Any], place: str, depth: int) -> pa.DataType:
    """The type of the values of a schema, which has the path `place`."""
    if depth > DEPTH:
        raise ValueError(f"{place[:40]}: refers to itself, or is nested more than {DEPTH} times")
    if not isinstance(schema, dict):
        raise ValueError(f"{place}: is not an object")
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        if name not in definitions:
            raise ValueError(f"{place}: $ref {schema['$ref']!r} is not in $defs")
        return _type(definitions[name], definitions, place, depth + 1)
    others = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(others) == 1 and "type" not in schema:
        return _type(others[0], definitions, place, depth + 1)
    given = schema.get("type", "string" if _only_texts(schema.get("enum", [schema.get("const")])) else None)
    kinds = [kind for kind in (given if isinstance(given, list) else [given]) if kind != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "array" and "items" in schema:
        return pa.list_(pa.field("element", _type(schema["items"], definitions, f"{place}[]", depth + 1)))
    if kind == "object" and schema.get("properties"):
        fields = schema["properties"].items()
        return pa.struct({name: _type(each, definitions, f"{place}.{name}", depth + 1) for name, each in fields})
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    raise ValueError(
        f"{place}: has no type of Spark; expected string, integer, number, boolean, array with items, or object with "
        "properties, each with null or without"
    )


def _only_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _value(found: Any, type_: pa.DataType) -> Any:
    """The value as the type has it; null for what is absent."""
    if found is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: _value(found.get(field.name), field.type) for field in type_}
    if pa.types.is_list(type_):
        return [_value(each, type_.value_type) for each in found]
    if pa.types.is_integer(type_):
        most = 1 << (type_.bit_width - 1)
        if not -most <= found < most:
            raise InvalidAnswer(f"a number is out of the range of {spelled(type_)}")
        return int(found)
    if pa.types.is_floating(type_):
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise InvalidAnswer(f"a number is out of the range of {spelled(type_)}")
        return number
    if isinstance(found, str):
        require_unicode(found)
    return found


def require_unicode(text: str) -> None:
    """Raise InvalidAnswer for text that UTF-8 cannot represent, such as half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidAnswer("a text is not valid Unicode") from None
