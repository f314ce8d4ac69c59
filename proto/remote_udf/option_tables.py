"""Tables of options and settings, and what reads their values.

A table is a frozen dataclass whose fields are declared with `option`. Its objects have the values.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from remote_udf.errors import InvalidOption
from remote_udf.option_values import ValueReader

__all__ = ["Option", "mapping", "option", "read_values", "table_of"]

ValueT = TypeVar("ValueT")
DefaultT = TypeVar("DefaultT")


@dataclasses.dataclass(frozen=True)
class Option:
    """An option: how to parse and format it, its default and its meaning."""

    name: str
    parse: Callable[[Any], Any]
    format: Callable[[Any], str]
    default: Any
    doc: str

    @functools.cached_property
    def attribute(self) -> str:
        """The name in Python code."""
        return self.name.replace("-", "_")


def option(
    read: ValueReader[ValueT], default: DefaultT, doc: str, *, secret: bool = False, **more: object
) -> ValueT | DefaultT:  # fmt: skip
    """Declare a field of a table. Its name, with hyphens, is that of the option.

    Args:
        read: Reads its values.
        default: The value if it is not set.
        doc: What it means, for the documentation.
        secret: Whether the value is kept out of the repr.
        **more: Metadata of the field.
    """
    return dataclasses.field(default=default, repr=not secret, metadata={"reader": read, "doc": doc, **more})


def mapping(read: ValueReader[Mapping[str, ValueT]], doc: str, *, secret: bool = False) -> Mapping[str, ValueT]:
    """Declare a field that is a mapping. It is empty if it is not set, and not in the repr if it is secret."""
    return dataclasses.field(default_factory=dict, repr=not secret, metadata={"reader": read, "doc": doc})


_tables: dict[type, Mapping[str, Option]] = {}


def table_of(kind: type[Any]) -> Mapping[str, Option]:
    """Return the options that are declared in a dataclass, by name, in their order. Other fields are omitted."""
    if kind not in _tables:
        table = {}
        for field in dataclasses.fields(kind):
            if (read := field.metadata.get("reader")) is not None:
                name = field.name.replace("_", "-")
                default = None if field.default is dataclasses.MISSING else field.default
                table[name] = Option(name, read, read.format, default, field.metadata["doc"])
        _tables[kind] = table
    return _tables[kind]


def read_values(
    table: Mapping[str, Option], given: Mapping[str, Any], where: Callable[[Option], str]
) -> dict[str, Any]:  # fmt: skip
    """Return the values of a table, by attribute.

    Args:
        table: The options by name.
        given: Values by name; each name is in the table.
        where: The beginning of the message for a value that cannot be read.

    Raises:
        InvalidOption: A value is malformed.
    """
    values = {}
    for name, value in given.items():
        known = table[name]
        try:
            values[known.attribute] = known.parse(value)
        except InvalidOption as error:
            raise InvalidOption(f"{where(known)}: {error}") from None
    return values
