"""Collector finds out the state of submissions, and keeps the results of batches that have ended."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import udf_server as udf
from udf_models.batches.events import BATCH_ROWS, BATCHES
from udf_models.batches.records import BatchRecords, Kept, Row, RowState, SubmissionState
from udf_models.batches.results import result_of
from udf_models.batches.service import BatchService, BatchStatus
from udf_models.client import ModelClient, ModelError
from udf_models.models import Model

__all__ = ["Collector"]

log = logging.getLogger(__name__)

LINES_AT_ONCE = 500
"""Lines of results that are kept at once."""


class Collector:
    """Does for submissions of one function what is due. Of several servers one does it, because it changes `until`."""

    def __init__(self, client: ModelClient, records: BatchRecords, *, wall: Callable[[], float] = time.time) -> None:
        self._model = client.model
        self._settings = client.model.batch
        self._amounts = client.amounts
        self._records = records
        self._service = BatchService(client)
        self._wall = wall

    async def advanced(self, kept: Kept, context: udf.BatchContext) -> Kept:
        """Do what is due for a submission, and return what it is then.

        If it is ended, the results of all its rows have been kept.

        Raises:
            RetryableError: The service could not be asked; a later call tries again.
            ModelError: The service refuses to tell of the batch.
            KeyValueError: The records cannot be read or written.
        """
        submission, now = kept.submission, self._wall()
        if submission.state is SubmissionState.NEW:
            # The server that submits stops at `until`. Differences of clocks and requests on their way need more.
            return kept if now < submission.until + self._settings.lease else await self._recovered(kept)
        if now < submission.until:
            return kept
        if submission.state is SubmissionState.ENDED:
            # What has no result is no longer an error, so it is submitted again.
            return await self._records.change(kept, state=SubmissionState.ABANDONED) or kept
        if submission.state is not SubmissionState.OPEN:
            return kept
        taken = await self._records.change(kept, until=now + self._settings.poll_interval)
        if taken is None:
            return kept
        status = await self._service.status(submission.batch)
        return await self._collected(taken, status, context) if status.ended else taken

    async def _recovered(self, kept: Kept) -> Kept:
        """Find out whether a submission whose server was lost has a batch."""
        submission = kept.submission
        taken = await self._records.change(kept, until=self._wall() + self._settings.lease)
        if taken is None:
            return kept
        batch = await self._service.find(submission.id, submission.created)
        if batch is None:
            changed = await self._records.change(taken, state=SubmissionState.ABANDONED)
        else:
            changed = await self._records.change(taken, state=SubmissionState.OPEN, batch=batch, until=self._wall())
        if changed is not None:
            BATCHES.inc(event="abandoned" if batch is None else "adopted")
            log.info("submission of a lost server", extra={"submission": submission.id, "batch": batch})
        return changed or taken

    async def _collected(self, kept: Kept, status: BatchStatus, context: udf.BatchContext) -> Kept:
        """Keep the results of a batch that has ended, then that it is over."""
        why, unusable = _why(self._model, status), 0
        taken = await self._records.change(kept, until=self._wall() + self._settings.lease)
        if taken is None:
            return kept
        kept = taken
        for file in status.files:
            part: list[bytes] = []
            try:
                async with contextlib.aclosing(self._service.lines(file, self._settings.max_file_bytes)) as lines:
                    async for line in lines:
                        part.append(line)
                        if len(part) == LINES_AT_ONCE:
                            unusable += await self._keep(kept.submission.id, part, context)
                            part = []
                            renewed = await self._records.change(kept, until=self._wall() + self._settings.lease)
                            if renewed is None:
                                return kept  # another server collects it
                            kept = renewed
            except ModelError as error:
                why = f"{why}; {error}"
            except udf.RetryableError:
                # This server is not lost, so nobody has to wait for the end of its lease.
                await self._records.change(kept, until=self._wall() + self._settings.poll_interval)
                raise
            unusable += await self._keep(kept.submission.id, part, context)
        if unusable:
            why = f"{why}; {unusable} lines of its files are not usable"
            BATCH_ROWS.inc(unusable, event="unusable")
        until = self._wall() + self._settings.keep_errors
        ended = await self._records.change(kept, state=SubmissionState.ENDED, until=until, why=why)
        if ended is not None:
            BATCHES.inc(event="ended")
            log.info("batch has ended", extra={"batch": status.id, "status": status.status, "unusable": unusable})
        return ended or kept

    async def _keep(self, submission: str, lines: Sequence[bytes], context: udf.BatchContext) -> int:
        """Keep the results of rows of the submission, and spend what they cost. Returns the number of other lines."""
        found = await asyncio.to_thread(lambda: [result_of(line, self._model) for line in lines])
        results = {each.key: each for each in found if each is not None}
        rows = await self._records.rows(list(results))
        waits = Row(RowState.PENDING, submission)
        for state, seconds in ((RowState.ANSWER, self._settings.keep), (RowState.ERROR, self._settings.keep_errors)):
            changes = [
                (key, rows[key].entry, each.row)
                for key, each in results.items()
                if each.row.state is state and rows[key].row == waits
            ]
            made = await self._records.set_rows(changes, seconds)
            # Only who changes a row spends its cost, so it is spent once.
            for (key, _, _), done in zip(changes, made, strict=True):
                if done and (amounts := self._amounts(results[key].usage, self._settings.discount)):
                    context.spend(**amounts)
            BATCH_ROWS.inc(sum(made), event="answered" if state is RowState.ANSWER else "failed")
        strange = sum(row is None or (row.state is RowState.PENDING and row != waits) for _, row in rows.values())
        return len(lines) - len(results) + strange


def _why(model: Model, status: BatchStatus) -> str:
    """The error of rows for which the files have nothing."""
    said = {
        "completed": "completed without a result for this request",
        "expired": "expired before this request was answered",
        "cancelled": "was cancelled before this request was answered",
    }.get(status.status, f"failed ({status.code})" if status.code else "failed")
    return f"model {model.name!r}: batch {status.id} {said}"
