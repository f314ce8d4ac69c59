"""Batches answers requests: with what is kept, by submitting what is unknown, and by collecting what is ready."""

import logging
from collections.abc import Mapping

import udf_server as udf
from udf_models.batches.collecting import Collector
from udf_models.batches.records import SUBMITTED, BatchRecords, Found, Kept, Outcome, RowState, SubmissionState
from udf_models.batches.submitting import Request, Submitter
from udf_models.client import ModelError

__all__ = ["Batches"]

log = logging.getLogger(__name__)


class Batches:
    """The batches of one function. Several servers may use the same records. Use it on the function's event loop."""

    def __init__(self, records: BatchRecords, submitter: Submitter, collector: Collector) -> None:
        self._records = records
        self._submitter = submitter
        self._collector = collector

    async def ask(self, asked: Mapping[bytes, Request], context: udf.BatchContext) -> dict[bytes, Outcome]:
        """Return for each request its answer, its error, or SUBMITTED.

        Args:
            asked: For each key its request.
            context: Gets what rows cost whose results are collected.

        Raises:
            KeyValueError: The records cannot be read or written.
        """
        rows = await self._records.rows(list(asked))
        ids = {row.text for _, row in rows.values() if row is not None and row.state is RowState.PENDING}
        submissions = await self._records.submissions(sorted(ids))
        refusals: dict[str, udf.Failure] = {}
        for each, kept in submissions.items():
            if kept is None:
                continue
            try:
                submissions[each] = await self._collector.advanced(kept, context)
            except udf.RetryableError as error:
                log.warning("batch is asked about later", extra={"batch": kept.submission.batch, "why": str(error)})
            except ModelError as error:
                refusals[each] = udf.Failure(str(error))
        # The results of a submission that has ended were kept before it became that.
        rows |= await self._records.rows([key for key, found in rows.items() if _ended(found, submissions)])
        outcomes: dict[bytes, Outcome] = {}
        unknown: dict[bytes, tuple[udf.KeyValueEntry | None, Request]] = {}
        for key, (entry, row) in rows.items():
            if row is not None and row.state is not RowState.PENDING:
                outcomes[key] = row if row.state is RowState.ANSWER else udf.Failure(row.text)
            elif row is not None and row.text in refusals:
                outcomes[key] = refusals[row.text]
            elif row is None or (kept := submissions.get(row.text)) is None or kept.is_abandoned:
                unknown[key] = entry, asked[key]
            else:
                is_over = kept.submission.state is SubmissionState.ENDED
                outcomes[key] = udf.Failure(kept.submission.why) if is_over else SUBMITTED
        return outcomes | await self._submitter.submit(unknown, context)


def _ended(found: Found, submissions: Mapping[str, Kept | None]) -> bool:
    if found.row is None or found.row.state is not RowState.PENDING:
        return False
    kept = submissions.get(found.row.text)
    return kept is not None and kept.submission.state is SubmissionState.ENDED
