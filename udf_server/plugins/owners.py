"""Who owns a plugin: what its hook says, or else the metadata of its package."""

import importlib.metadata
from email.utils import getaddresses

from udf_server.base.errors import PluginError

__all__ = ["OWNER_LIMIT", "checked_owner", "owner_of_package"]

OWNER_LIMIT = 200
"""Characters of an owner."""
_CONTACTS = ("support", "contact", "chat", "issues", "bug tracker", "homepage", "documentation", "repository", "source")
"""Labels of project URLs, where to ask first."""


def owner_of_package(distribution: importlib.metadata.Distribution | None) -> str:
    """People and where to ask, as `Geo team <geo@acme.example>, https://acme.example/geo`; empty if it names none.

    Maintainers come before authors. Of the project's URLs the first of those where people can be asked.
    """
    if distribution is None:
        return ""
    fields = distribution.metadata
    for role in ("Maintainer", "Author"):
        # Names with an address are in the second field, names without one in the first.
        people = [text for name in (f"{role}-email", role) for text in fields.get_all(name) or () if text.strip()]
        if people:
            break
    pairs = [text.partition(",") for text in fields.get_all("Project-URL") or ()]
    addresses = {label.strip().lower(): address.strip() for label, _, address in pairs}
    contact = next((addresses[label] for label in _CONTACTS if label in addresses), "")
    return _line(", ".join([*map(_readable, people), *([contact] if contact else ())]))


def checked_owner(plugin: str, owner: object) -> str:
    """What the hook `udf_owner` of a plugin returned. Raises PluginError for something that is no text."""
    if not isinstance(owner, str):
        raise PluginError(f"plugin {plugin!r}: udf_owner returned {owner!r}, expected text such as a team's address")
    return _line(owner)


def _readable(people: str) -> str:
    """`Geo team <geo@acme.example>`, without the quotes that mail needs."""
    if "@" not in people:
        return people
    return ", ".join(f"{name} <{address}>" if name else address for name, address in getaddresses([people]))


def _line(owner: str) -> str:
    return " ".join(owner.split())[:OWNER_LIMIT]
