"""ScriptedBatches: the Batch API of the scripted service, with its files, kept in a folder if it has to outlive it."""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

__all__ = ["BatchEnding", "ScriptedBatches"]

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]
"""The body of a completion, or of an error, for the body of a request."""
LISTED = 100


@dataclass(frozen=True)
class BatchEnding:
    """How one batch ends, in place of the usual end."""

    status: str = "completed"
    """Or failed, expired or cancelled."""
    seconds: float | None = None
    """When it ends, after its creation; None for the usual time."""
    answered: int | None = None
    """Number of its first requests that are answered; None for all. The others are in the file of errors."""
    code: str = "batch_expired"
    """The code of these errors, or of the batch if it has failed."""
    output: str | None = None
    """The whole file of answers, whatever was asked."""


@dataclass
class _Batch:
    id: str
    created: float
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str]
    ending: BatchEnding
    cancelled: bool = False
    output_file_id: str | None = None
    error_file_id: str | None = None
    over: bool = False


@dataclass
class _Kept:
    """What a restart of the service keeps."""

    files: dict[str, str] = field(default_factory=dict)
    batches: dict[str, _Batch] = field(default_factory=dict)


class ScriptedBatches:
    """Files and batches. A batch ends when it is asked about after its time. Use it on the thread of the service."""

    def __init__(self, answer: Answer, seconds: float, folder: Path | None) -> None:
        """A request of a batch is answered by `answer`; a batch takes `seconds`."""
        self._answer = answer
        self.seconds = seconds
        self._file = folder / "batches.json" if folder is not None else None
        self.endings: deque[BatchEnding] = deque()
        self._kept = _Kept()
        if self._file is not None and self._file.exists():
            found = json.loads(self._file.read_text("utf-8"))
            batches = {
                each["id"]: _Batch(**{**each, "ending": BatchEnding(**each["ending"])}) for each in found["batches"]
            }
            self._kept = _Kept(found["files"], batches)

    @property
    def requests(self) -> Counter[str]:
        """How many batches each request is in, by the JSON of its body."""
        return Counter(
            json.dumps(line["body"], sort_keys=True)
            for batch in self._kept.batches.values()
            for line in self._lines(batch)
        )

    @property
    def ids(self) -> list[str]:
        """The ids of all batches, in their order."""
        return list(self._kept.batches)

    async def uploaded(self, incoming: web.Request) -> dict[str, str]:
        """Read the fields of a file that is uploaded."""
        form = await incoming.post()
        file = form["file"]
        assert isinstance(file, web.FileField)
        with file.file:
            return {"purpose": str(form["purpose"]), "file": file.file.read().decode()}

    def reply(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Any:
        """The answer to a request: JSON, or the text of a file; None if there is no such thing."""
        match method, path.split("/"):
            case "POST", ["files"]:
                return self._upload(body)
            case "GET", ["files", id_, "content"]:
                return self._kept.files.get(id_)
            case "POST", ["batches"]:
                return self._create(body)
            case "POST", ["batches", id_, "cancel"] if id_ in self._kept.batches:
                self._kept.batches[id_].cancelled = True
                return self._shown(self._kept.batches[id_])
            case "GET", ["batches", id_] if id_ in self._kept.batches:
                return self._shown(self._kept.batches[id_])
            case "GET", ["batches"]:
                return self._list(query)
        return None

    def _upload(self, body: Mapping[str, Any]) -> dict[str, Any]:
        id_ = self._add_file(body["file"])
        return {"id": id_, "object": "file", "purpose": body["purpose"], "bytes": len(body["file"])}

    def _create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ending = self.endings.popleft() if self.endings else BatchEnding()
        batch = _Batch(
            f"batch_{len(self._kept.batches) + 1}", time.time(), body["input_file_id"], body["endpoint"],
            body["completion_window"], body.get("metadata") or {}, ending,
        )  # fmt: skip
        self._kept.batches[batch.id] = batch
        self._keep()
        return self._shown(batch)

    def _list(self, query: Mapping[str, str]) -> dict[str, Any]:
        newest = list(reversed(self._kept.batches.values()))
        start = next((place + 1 for place, each in enumerate(newest) if each.id == query.get("after")), 0)
        end = start + min(int(query.get("limit", "20")), LISTED)
        page = [self._shown(each) for each in newest[start:end]]
        return {"object": "list", "data": page, "has_more": end < len(newest)}

    def _shown(self, batch: _Batch) -> dict[str, Any]:
        self._advance(batch)
        status = "cancelled" if batch.cancelled and batch.over else batch.ending.status if batch.over else "in_progress"
        failed = {"object": "list", "data": [{"code": batch.ending.code, "message": "scripted", "line": 1}]}
        return {
            "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "input_file_id": batch.input_file_id,
            "completion_window": batch.completion_window, "status": status, "created_at": int(batch.created),
            "output_file_id": batch.output_file_id, "error_file_id": batch.error_file_id,
            "errors": failed if status == "failed" else None, "metadata": batch.metadata,
        }  # fmt: skip

    def _advance(self, batch: _Batch) -> None:
        """End a batch whose time has come: write its files."""
        seconds = self.seconds if batch.ending.seconds is None else batch.ending.seconds
        if batch.over or not (batch.cancelled or time.time() >= batch.created + seconds):
            return
        batch.over = True
        lines = self._lines(batch) if batch.ending.status != "failed" else []
        answered = 0 if batch.cancelled else len(lines) if batch.ending.answered is None else batch.ending.answered
        good = [(line, self._answer(line["body"])) for line in lines[:answered]]
        output = [
            _line(line, response={"status_code": 400 if "error" in body else 200, "body": body}) for line, body in good
        ]
        code = "batch_cancelled" if batch.cancelled else batch.ending.code
        errors = [
            _line(line, error={"code": code, "message": f"scripted for {line['body']}"}) for line in lines[answered:]
        ]
        if batch.ending.output is not None:
            output = [batch.ending.output]
        batch.output_file_id = self._add_file("".join(output)) if output else None
        batch.error_file_id = self._add_file("".join(errors)) if errors else None
        self._keep()

    def _lines(self, batch: _Batch) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._kept.files[batch.input_file_id].splitlines()]

    def _add_file(self, text: str) -> str:
        id_ = f"file-{len(self._kept.files) + 1}"
        self._kept.files[id_] = text
        self._keep()
        return id_

    def _keep(self) -> None:
        if self._file is not None:
            kept = {"files": self._kept.files, "batches": [asdict(each) for each in self._kept.batches.values()]}
            self._file.write_text(json.dumps(kept), "utf-8")


def _line(line: Mapping[str, Any], *, response: Any = None, error: Any = None) -> str:
    return json.dumps({"id": "r", "custom_id": line["custom_id"], "response": response, "error": error}) + "\n"
