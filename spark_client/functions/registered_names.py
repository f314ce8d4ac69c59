"""The names under which queries register functions with Spark, and the names that users know these functions by.

Spark's catalog lists functions only if it can parse the name of each temporary one, so none has an `@`.
"""

import re
from enum import StrEnum

from spark_client.base.identifiers import hidden

__all__ = ["Form", "carrier_of", "registered_name", "shown"]


class Form(StrEnum):
    """How a query registers a function."""

    AS_DECLARED = "v"
    ONCE = "once"
    """As nondeterministic, so that Spark does not duplicate its calls."""
    EMPTY = "empty"
    """Without arguments, although it has parameters."""
    LATERAL = "lateral"
    """As deterministic although it is not, for lateral joins."""


_REGISTERED = re.compile(rf"\b{hidden('')}(?:{'|'.join(Form)})(?:(?P<version>\d+(?:_\d+)*)_)?_(?P<name>\w+)")
_CARRIED = re.compile(rf"\b{hidden('')}(\w+)\(true\)")
"""The call of what `carrier_of` names."""


def carrier_of(name: str) -> str:
    """The function that a function registered without parameters calls with a constant."""
    return hidden(name.replace("@", "_").replace(".", "_"))


def registered_name(name: str, form: Form = Form.AS_DECLARED) -> str:
    """The name with Spark of the function `name`, "name" or "name@version"."""
    plain, at, version = name.partition("@")
    if not at:
        return name if form is Form.AS_DECLARED else hidden(f"{form}_{name}")
    return hidden(f"{form}{version.replace('.', '_')}__{plain}")


def shown(text: str) -> str:
    """The text with the names that users know in place of those with Spark."""

    def known(found: re.Match[str]) -> str:
        version = found["version"]
        return found["name"] if version is None else f"{found['name']}@{version.replace('_', '.')}"

    return _REGISTERED.sub(known, _CARRIED.sub(r"\1()", text))
