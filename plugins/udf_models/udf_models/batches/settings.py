"""BatchSettings: how a model's batches are submitted, asked about and kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remote_udf.errors import InvalidOption
from remote_udf.option_tables import option, read_values, table_of
from remote_udf.option_values import duration, fraction, reader, size, text

__all__ = ["BatchSettings", "batch_settings_of"]


@reader("bool")
def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidOption(f"{value!r} is neither true nor false")
    return value


@dataclass(frozen=True)
class BatchSettings:
    """The table `batch` of a model. Durations are in seconds."""

    discount: float = option(fraction, 0.5, "The part of the price that a batch saves.")
    window: str = option(text, "24h", "What the service gets as `completion_window`.")
    poll_interval: float = option(
        duration, 60.0, "All servers together ask for the status of a batch at most once in this time."
    )
    lease: float = option(
        duration, 300.0,
        "How long a server may take to submit a file, or to keep 500 results. Later another server takes over. "
        "A server doubles it when a file takes longer.",
    )  # fmt: skip
    keep: float = option(duration, 7 * 86_400.0, "How long answers are kept.")
    keep_errors: float = option(
        duration, 3_600.0, "How long errors are kept. A row that is asked after that is submitted again."
    )
    max_file_bytes: int = option(size, 1 << 30, "Largest file with answers that is read.")
    in_memory: bool = option(
        _switch, False, "Whether the server may start although a restart loses the ids of batches."
    )


def batch_settings_of(table: Mapping[str, Any]) -> BatchSettings:
    """Read the table `batch` of a model. Raises ValueError, which names the setting."""
    known = table_of(BatchSettings)
    if unknown := sorted(table.keys() - known.keys()):
        raise ValueError(f"batch: has {', '.join(unknown)}; known are {', '.join(known)}")
    return BatchSettings(**read_values(known, table, lambda setting: f"batch.{setting.name}"))
