"""Submitter sends requests in files, so that each request has one batch, also if servers are lost at any step.

1. It keeps the intent: a Submission in the state NEW.
2. By comparison, each row gets the id of the submission. Rows that another server has submitted meanwhile are excluded.
3. It uploads the file and creates the batch, with the id of the submission in the batch's metadata.
4. It keeps the id of the batch: state OPEN.

If it is lost before 4, another server looks for the batch in the service's list; see `Collector`. A server that was
suspended reads its clock again immediately before the request that creates the batch: the service would not refuse it.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import udf_server as udf
from udf_models.batches.events import BATCH_ROWS, BATCHES
from udf_models.batches.records import (
    PENDING_SECONDS,
    SUBMITTED,
    BatchRecords,
    Kept,
    Outcome,
    Row,
    RowState,
    Submission,
    SubmissionState,
)  # fmt: skip
from udf_models.batches.service import ENDPOINT, BatchService, Uncertain
from udf_models.client import ModelClient, ModelError

__all__ = ["Request", "Submitter", "failure_of"]

log = logging.getLogger(__name__)

LONGEST_LEASE = 3_600.0
"""A lease that is too short is doubled up to this."""
FILE_ROWS, FILE_BYTES = 50_000, 100 << 20
"""Most requests and bytes of one file. The Batch API allows 50,000 and 200 MB."""


class Request(NamedTuple):
    """A request for a completion."""

    body: Callable[[], Mapping[str, Any]]
    """Makes its body, which is needed only if it is submitted."""
    size: int
    """Bytes of its prompt and instructions."""


class Submitter:
    """Submits the requests of one function."""

    def __init__(
        self, client: ModelClient, records: BatchRecords, *, wall: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:  # fmt: skip
        """Create it.

        Args:
            client: The client of the model.
            records: The rows and submissions of the function.
            wall: The seconds since 1970. The clocks of servers must differ by less than the setting `lease`.
            new_id: Returns an id that no other submission has.
        """
        self._client = client
        self._settings = client.model.batch
        self._lease = self._settings.lease
        self._records = records
        self._service = BatchService(client)
        self._wall = wall
        self._new_id = new_id

    async def submit(
        self, asked: Mapping[bytes, tuple[udf.KeyValueEntry | None, Request]], context: udf.BatchContext
    ) -> dict[bytes, Outcome]:
        """Submit requests that have no submission, and report to the context what they are expected to cost.

        Args:
            asked: For each key the entry of its row when it was read, and its request.
            context: The context of the call.

        Returns:
            SUBMITTED for each key, or why the request was not submitted.

        Raises:
            KeyValueError: The records cannot be written.
        """
        lines, outcomes = await asyncio.to_thread(self._lines, asked)
        for file in _files(lines):
            submitted, refused = await self._submit(file, {key: asked[key][0] for key in file})
            outcomes |= dict.fromkeys(file, SUBMITTED) | refused
            if submitted:
                sizes = [asked[key][1].size for key in submitted]
                context.spend(**self._client.model.estimate_batch(sum(sizes), len(sizes)))
        return outcomes

    def _lines(self, asked: Mapping[bytes, tuple[Any, Request]]) -> tuple[dict[bytes, bytes], dict[bytes, Outcome]]:
        """The line of each request, and the errors of those that cannot be sent."""
        lines: dict[bytes, bytes] = {}
        refused: dict[bytes, Outcome] = {}
        for key, (_, request) in asked.items():
            try:
                encoded = self._client.encoded("batches", request.body())
            except ModelError as error:
                refused[key] = udf.Failure(str(error))
            else:
                head = f'{{"custom_id": "{key.hex()}", "method": "POST", "url": "{ENDPOINT}", "body": '
                lines[key] = head.encode() + encoded + b"}\n"
        return lines, refused

    async def _submit(
        self, lines: Mapping[bytes, bytes], entries: Mapping[bytes, udf.KeyValueEntry | None]
    ) -> tuple[list[bytes], dict[bytes, Outcome]]:
        """Submit one file. Returns the keys of the rows of its batch, and the errors of rows if there is no batch."""
        now, lease = self._wall(), self._lease
        submission = Submission(self._new_id(), SubmissionState.NEW, now, now + lease)
        kept = await self._records.begin(submission)
        pending = Row(RowState.PENDING, submission.id)
        made = await self._records.set_rows([(key, entries[key], pending) for key in lines], PENDING_SECONDS)
        mine = [key for key, done in zip(lines, made, strict=True) if done]
        if not mine or kept is None:
            return [], {}
        try:
            async with asyncio.timeout(max(submission.until - self._wall(), 0.0)):
                created = await self._created(kept, b"".join(lines[key] for key in mine))
        except TimeoutError:
            # A service that needs longer would never get a batch. If the timer is late, this server was suspended.
            if self._wall() < submission.until + self._settings.lease:
                self._lease = max(self._lease, min(2 * lease, LONGEST_LEASE))
            log.warning("batch may not exist", extra={"submission": submission.id, "why": f"it took {lease:g} s"})
            return mine, {}
        except Uncertain as error:
            log.warning("batch may not exist", extra={"submission": submission.id, "why": str(error)})
            return mine, {}
        except (ModelError, udf.RetryableError) as error:
            await self._records.change(kept, state=SubmissionState.ABANDONED)
            return [], dict.fromkeys(mine, failure_of(error))
        if created is not None:
            BATCHES.inc(event="submitted")
            BATCH_ROWS.inc(len(mine), event="submitted")
        return mine, {}

    async def _created(self, kept: Kept, lines: bytes) -> Kept | None:
        """Create the batch of a submission, and keep its id."""
        submission = kept.submission
        file = await self._service.upload(lines)
        # The timer of a server that was suspended may ring late, and others may have given the submission up.
        batch = await self._service.create(
            file, submission.id, self._settings.window, lambda: self._wall() >= submission.until
        )
        until = self._wall() + self._settings.poll_interval
        return await self._records.change(kept, state=SubmissionState.OPEN, batch=batch, until=until)


def failure_of(error: ModelError | udf.RetryableError) -> udf.Failure:
    """The outcome of a row for which the service has refused a request."""
    after = error.retry_after if isinstance(error, udf.RetryableError) else None
    return udf.Failure(str(error), retryable=isinstance(error, udf.RetryableError), retry_after=after)


def _files(lines: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """The lines in files of bounded size."""
    part: dict[bytes, bytes] = {}
    size = 0
    for key, line in lines.items():
        if part and (len(part) == FILE_ROWS or size + len(line) > FILE_BYTES):
            yield part
            part, size = {}, 0
        part[key] = line
        size += len(line)
    if part:
        yield part
