"""BatchSettings: how a model's batches are submitted, asked about and kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from remote_udf.errors import InvalidOption
from remote_udf.option_values import duration, fraction, size, text

__all__ = ["BatchSettings", "batch_settings_of"]


@dataclass(frozen=True)
class BatchSettings:
    """The table `batch` of a model. Durations are in seconds."""

    discount: float = 0.5
    """The part of the price that a batch saves."""
    window: str = "24h"
    """What the service gets as `completion_window`."""
    poll_interval: float = 60.0
    """All servers together ask for the status of a batch at most once in this time."""
    lease: float = 300.0
    """How long a server may take to submit a file, or to keep 500 results. Later another server takes over."""
    keep: float = 7 * 86_400.0
    """How long answers are kept."""
    keep_errors: float = 3_600.0
    """How long errors are kept. A row that is asked after that is submitted again."""
    max_file_bytes: int = 1 << 30
    """Largest file with answers that is read."""
    in_memory: bool = False
    """Whether the server may start although a restart loses the ids of batches."""


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{value!r} is neither true nor false")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "discount": fraction, "window": text, "poll_interval": duration, "lease": duration, "keep": duration,
    "keep_errors": duration, "max_file_bytes": size, "in_memory": _switch,
}  # fmt: skip


def batch_settings_of(table: Mapping[str, Any]) -> BatchSettings:
    """Read the table `batch` of a model. Raises ValueError, which names the setting."""
    names = {each.name.replace("_", "-"): each.name for each in fields(BatchSettings)}
    if unknown := sorted(table.keys() - names.keys()):
        raise ValueError(f"batch: has {', '.join(unknown)}; known are {', '.join(names)}")
    values = {}
    for name, value in table.items():
        try:
            values[names[name]] = _READERS[names[name]](value)
        except InvalidOption as error:
            raise ValueError(f"batch.{name}: {error}") from None
    return BatchSettings(**values)
