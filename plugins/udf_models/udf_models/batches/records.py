"""What the key-value store has of batches: a Row for each request, and a Submission for each file of requests."""

import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from udf_server import Failure, KeyValueEntry, KeyValueStore

__all__ = [
    "PENDING_SECONDS", "SUBMITTED", "BatchRecords", "Found", "Kept", "Outcome", "Row", "RowState", "Submission",
    "SubmissionState",
]  # fmt: skip

PENDING_SECONDS = 30 * 86_400.0
"""How long the ids of batches are kept. Services delete batches and their files earlier."""


class RowState(StrEnum):
    """What a row has: a submission, an answer or an error."""

    PENDING = "p"
    ANSWER = "a"
    ERROR = "e"


@dataclass(frozen=True, slots=True)
class Row:
    """The state of a request."""

    state: RowState
    text: str
    """The id of its submission, the answer, or the message of the error."""

    def encoded(self) -> bytes:
        return self.state.encode() + self.text.encode()

    @classmethod
    def decoded(cls, value: bytes) -> "Row":
        return cls(RowState(value[:1].decode()), value[1:].decode())


SUBMITTED = Row(RowState.PENDING, "")
"""The outcome of a request that has a submission and no result."""
Outcome = Row | Failure


class Found(NamedTuple):
    """A row and the entry that it was read from; None for an unknown request."""

    entry: KeyValueEntry | None
    row: Row | None


class SubmissionState(StrEnum):
    """How far a submission is."""

    NEW = "new"
    """A server uploads the file and creates the batch, or was lost while it did."""
    OPEN = "open"
    """The batch has an id."""
    ENDED = "ended"
    """The batch has ended, and its rows have what its files have for them."""
    ABANDONED = "abandoned"
    """Rows that have no result are submitted again: there is no such batch, or their errors are no longer kept."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One file of requests."""

    id: str
    state: SubmissionState
    created: float
    until: float
    """No other server acts on it before this time: seconds since 1970."""
    batch: str = ""
    """The id of the batch at the service."""
    why: str = ""
    """What rows without a result of their own have as their error, if it has ended."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, value: bytes) -> "Submission":
        found = json.loads(value)
        return cls(**{**found, "state": SubmissionState(found["state"])})


@dataclass(frozen=True, slots=True)
class Kept:
    """A submission with the entry that it was read from."""

    submission: Submission
    entry: KeyValueEntry

    @property
    def is_abandoned(self) -> bool:
        return self.submission.state is SubmissionState.ABANDONED


class BatchRecords:
    """Rows and submissions of one function. Methods raise KeyValueError."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def rows(self, keys: list[bytes]) -> dict[bytes, Found]:
        """The row of each key."""
        entries = await self._store.get([b"r" + key for key in keys])
        return {
            key: Found(entry, None if entry is None else Row.decoded(entry.value))
            for key, entry in zip(keys, entries, strict=True)
        }

    async def set_rows(self, changes: list[tuple[bytes, KeyValueEntry | None, Row]], seconds: float) -> list[bool]:
        """Change rows that are still as they were read. Returns for each whether it was."""
        return await self._store.compare_and_set(
            [(b"r" + key, entry, row.encoded()) for key, entry, row in changes], seconds
        )

    async def submissions(self, ids: list[str]) -> dict[str, Kept | None]:
        """The submission of each id; None if it is unknown."""
        entries = await self._store.get([_place(each) for each in ids])
        return {
            each: None if entry is None else Kept(Submission.decoded(entry.value), entry)
            for each, entry in zip(ids, entries, strict=True)
        }

    async def begin(self, submission: Submission) -> Kept | None:
        """Keep a new submission."""
        return await self._set(submission, None)

    async def change(self, kept: Kept, **changes: Any) -> Kept | None:
        """Change fields of a submission. Returns None if another server has changed it since it was read."""
        return await self._set(replace(kept.submission, **changes), kept.entry)

    async def _set(self, submission: Submission, entry: KeyValueEntry | None) -> Kept | None:
        place = _place(submission.id)
        (made,) = await self._store.compare_and_set([(place, entry, submission.encoded())], PENDING_SECONDS)
        (found,) = await self._store.get([place]) if made else [None]
        # Another server may have changed it since.
        return None if found is None or found.value != submission.encoded() else Kept(submission, found)


def _place(submission: str) -> bytes:
    return b"s" + submission.encode()
