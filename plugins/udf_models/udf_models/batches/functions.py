"""The functions that answer by batches: complete_batch and, for answers with a structure, complete_json_batch."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

import udf_server as udf
from udf_models.batches.asking import Batches
from udf_models.batches.collecting import Collector
from udf_models.batches.records import SUBMITTED, BatchRecords, Outcome
from udf_models.batches.submitting import Request, Submitter, failure_of
from udf_models.client import ModelClient, ModelError
from udf_models.declaring import bytes_of, declared, messages
from udf_models.models import Model
from udf_models.shapes import InvalidAnswer, Shape
from udf_models.structured import Question, parsed

__all__ = ["complete_batch", "complete_json_batch"]

KEY_BYTES = 16
REMEMBERED = 200_000
"""Keys of requests that this process remembers to be submitted, for estimates only."""
_OPTIONS: dict[str, Any] = {
    "batched": True, "batch_rows": 10_000, "max_queue_delay": "1 s", "instances": 4,
    "timeout": "1 h", "attempt_timeout": "30 min",
    # The result of a call changes, and the key-value store has the answers.
    "deterministic": False, "cache_ttl": None, "cache_key": None,
}  # fmt: skip


class _BatchFunction:
    """What the calls of one function share."""

    batches: Batches

    def __init__(
        self, model: Model, fixed: Any, body: Callable[[str, str], Mapping[str, Any]], read: Callable[[str], Any]
    ) -> None:
        """`body` makes a request of prompt and instructions. `read` makes a value of an answer, or raises."""
        self.model = model
        self._digest = model.digest("batch", fixed).encode()
        self._body = body
        self._read = read
        self._remembered: dict[bytes, None] = {}

    async def open(self, store: udf.KeyValueStore) -> None:
        self._client = ModelClient(self.model)
        records = BatchRecords(store)
        self.batches = Batches(records, Submitter(self._client, records), Collector(self._client, records))

    async def close(self) -> None:
        await self._client.close()

    async def ask(
        self, context: udf.BatchContext, prompts: Sequence[str], instructions: Sequence[str]
    ) -> list[dict[str, Any] | udf.Failure]:
        """The state and the answer of each row."""
        keys = self._keys(prompts, instructions)
        asked = {
            key: Request(functools.partial(self._body, *row), bytes_of(*row))
            for key, row in zip(keys, _rows(prompts, instructions), strict=True)
        }
        try:
            outcomes = await self.batches.ask(asked, context)
        except (udf.KeyValueError, udf.RetryableError) as error:
            # An exception would have the server call halves of these rows, which does not help.
            return [udf.Failure(str(error), retryable=True) for _ in keys]
        except ModelError as error:
            return [failure_of(error) for _ in keys]
        self._remember(key for key, outcome in outcomes.items() if not isinstance(outcome, udf.Failure))
        return [self._value(outcomes[key]) for key in keys]

    def cost(self, prompts: Sequence[str], instructions: Sequence[str] = ()) -> dict[str, float]:
        """What rows cost that this process does not know to be submitted. They are half of what it knows already."""
        new = {
            key: bytes_of(*row)
            for key, row in zip(self._keys(prompts, instructions), _rows(prompts, instructions), strict=True)
            if key not in self._remembered
        }
        return self.model.estimate_batch(sum(new.values()), len(new))

    def _keys(self, prompts: Sequence[str], instructions: Sequence[str]) -> list[bytes]:
        keys = []
        for prompt, told in _rows(prompts, instructions):
            hashed = hashlib.blake2b(self._digest, digest_size=KEY_BYTES)
            hashed.update(json.dumps([prompt, told]).encode())
            keys.append(hashed.digest())
        return keys

    def _value(self, outcome: Outcome) -> dict[str, Any] | udf.Failure:
        if isinstance(outcome, udf.Failure):
            return outcome
        if outcome == SUBMITTED:
            return {"state": "submitted", "answer": None}
        try:
            return {"state": "done", "answer": self._read(outcome.text)}
        except InvalidAnswer as reason:
            return udf.Failure(f"model {self.model.name!r}: the answer is not valid: {reason}")

    def _remember(self, keys: Any) -> None:
        self._remembered |= dict.fromkeys(keys)
        while len(self._remembered) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


def complete_batch(model: Model) -> udf.Function:
    """The function that answers prompts by batches."""
    shared = _BatchFunction(model, None, messages, lambda text: text)
    description = (
        f"The answer of {model.model} to a prompt, by a batch: `state` is 'submitted' or 'done'. Ask again until it is "
        "done. `instructions` are a system message."
    )
    return _declared("complete_batch", shared, pa.string(), description=description)


def complete_json_batch(model: Model, name: str, shape: Shape) -> udf.Function:
    """The function of an answer in the file: the field `answer` of its value has the type of the shape."""

    def body(prompt: str, instructions: str) -> Mapping[str, Any]:
        return Question(prompt, shape.schema, [instructions]).body(model)

    shared = _BatchFunction(model, json.dumps(shape.schema), body, lambda text: shape.value(parsed(text)))
    description = f"As complete_batch_{model.name}; the answer is a struct, as {name}. An invalid one is not repaired."
    return _declared("complete_json_batch", shared, shape.type, name=name, description=description)


def _declared(operation: str, shared: _BatchFunction, answer: pa.DataType, **declaration: Any) -> udf.Function:
    async def eval_(
        context: udf.BatchContext, prompt: list[str], instructions: Sequence[str] = ()
    ) -> list[dict[str, Any] | udf.Failure]:
        return await shared.ask(context, prompt, instructions)

    return declared(
        shared, operation, eval_, cost=shared.cost, durable_store=not shared.model.batch.in_memory,
        parameters="prompt string, instructions string",
        returns=pa.struct([("state", pa.string()), ("answer", answer)]), **_OPTIONS, **declaration,
    )  # fmt: skip


def _rows(prompts: Sequence[str], instructions: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(prompts, instructions or [""] * len(prompts), strict=True))
