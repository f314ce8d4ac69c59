"""Names and versions of functions: "geocode" means the highest version of a function, "geocode@2" one of them."""

import re

__all__ = ["split_name", "version_key"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VERSION = re.compile(r"\d+(\.\d+)*")


def split_name(text: str) -> tuple[str, str]:
    """Split "geocode@2" into name and version; for "geocode" the version is empty. Raises ValueError for other text."""
    name, _, version = text.partition("@")
    if not _NAME.fullmatch(name) or ("@" in text and not _VERSION.fullmatch(version)):
        raise ValueError(
            f"{text!r} is not a function name: write letters, digits and underscores, optionally '@' and a "
            "version of digits and dots"
        )
    return name, version


def version_key(version: str) -> tuple[int, ...]:
    """Return a key that sorts versions by number, so that 1.10 comes after 1.9."""
    return tuple(int(part) for part in version.split("."))
