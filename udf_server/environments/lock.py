"""The lock beside the file of settings: which packages each group has on every server of a fleet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from udf_server.base.errors import InvalidConfig
from udf_server.environments.asked import Asked

__all__ = ["LOCK", "Locked", "locked_for", "read_lock", "write_lock"]

LOCK = "groups.lock"
"""Name of the file, beside the file of settings."""


@dataclass(frozen=True)
class Locked:
    """The packages of one group."""

    asked: Sequence[str]
    """The requirements from which it was made."""
    python: str
    """The version of Python that was asked for; empty for the server's own."""
    requirements: Sequence[str]
    """Each package with its version and hashes."""

    def fits(self, asked: Asked) -> bool:
        """Whether it was made for what a group asks for now."""
        return (list(self.asked), self.python) == (list(asked.packages), asked.python)


def read_lock(path: Path) -> dict[str, Locked]:
    """The lock by group; empty if there is none. Raises InvalidConfig if it cannot be read."""
    try:
        groups = json.loads(path.read_text())["groups"]
        return {
            name: Locked(list(map(str, each["asked"])), str(each["python"]), list(map(str, each["requirements"])))
            for name, each in groups.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfig(f"{path} is no lock of groups ({error!r}); make it again with `udf-server sync`") from error


def write_lock(path: Path, groups: Mapping[str, Locked]) -> None:
    """Write the lock, whole or not at all."""
    text = json.dumps({"groups": {name: asdict(groups[name]) for name in sorted(groups)}}, indent=1)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(f"{text}\n")
    beside.replace(path)


def locked_for(asked: Asked, groups: Mapping[str, Locked], path: Path) -> Locked:
    """What the lock has for a group. Raises InvalidConfig if the group is not in it, or was made for something else."""
    locked = groups.get(asked.group)
    if locked is None or not locked.fits(asked):
        was = "has no packages" if locked is None else "was made for other plugins or another version of Python"
        raise InvalidConfig(f"setting groups.{asked.group}: {path} {was}; run `udf-server sync` and deploy both files")
    return locked
