"""Reads the lines of a batch's files with results: whatever they have, each is the result of one row, or nothing."""

import json
import re
from dataclasses import dataclass
from typing import Any

from udf_models.answers import text_of
from udf_models.batches.records import Row, RowState
from udf_models.client import ModelError
from udf_models.models import Model
from udf_models.refusals import Refusal
from udf_server.base.key_value_store import LARGEST_VALUE

__all__ = ["Result", "result_of"]

_CUSTOM_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Result:
    """What a line says about a row."""

    key: bytes
    row: Row
    usage: Any
    """What the service reports; None if nothing was used."""


def result_of(line: bytes, model: Model) -> Result | None:
    """Return the result of a row; None if the line is not a JSON object with the `custom_id` of a row."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    custom_id = found.get("custom_id") if isinstance(found, dict) else None
    if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
        return None
    response = found.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    status = response.get("status_code") if isinstance(response, dict) else None
    usage = None
    if status == 200 and isinstance(body, dict):
        usage = body.get("usage")
        try:
            row = Row(RowState.ANSWER, text_of(body, model))
        except ModelError as error:
            row = Row(RowState.ERROR, str(error))
    else:
        row = Row(RowState.ERROR, _refusal(found.get("error"), status, body, model))
    if len(row.encoded()) > LARGEST_VALUE:
        row = Row(RowState.ERROR, f"model {model.name!r}: the answer has more than {LARGEST_VALUE} bytes")
    return Result(bytes.fromhex(custom_id), row, usage)


def _refusal(error: Any, status: Any, body: Any, model: Model) -> str:
    details = error if isinstance(error, dict) else body.get("error") if isinstance(body, dict) else None
    refusal = Refusal.of(details)
    told = [str(status)] if type(status) is int else []
    if refusal.code and refusal.code not in told:
        told.append(refusal.code)
    message = f"model {model.name!r}: the batch has no answer for this request" + (
        f" ({', '.join(told)})" if told else ""
    )
    if model.show_service_messages and refusal.said:
        message += f": {refusal.said}"
    return message
