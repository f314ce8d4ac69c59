"""Asks for an answer in JSON, checks it, and asks once more if it is not as requested."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from udf_models.answers import text_of
from udf_models.client import ModelClient, ModelError
from udf_models.models import Model
from udf_models.shapes import InvalidAnswer
from udf_server import CallContext

__all__ = ["Question", "answered", "ask", "parsed"]

ValueT = TypeVar("ValueT")
AGAIN = (
    "Your answer is not valid, for the reason below. Answer again, with JSON of the requested schema and nothing else."
)
SCHEMA = "Answer with JSON of the schema below and nothing else."
_THOUGHTS = re.compile(r"(?:\s*<(think|thinking|reasoning)>.*?</\1>)+", re.DOTALL)
_BEGUN = re.compile(r"\s*<(?:think|thinking|reasoning)>")
_ENDED = re.compile(r".*?</(?:think|thinking|reasoning)>", re.DOTALL)
"""What models write before an answer. The beginning may be in the prompt, so that only the end is in the answer."""
_BLOCK = re.compile(r"^[ \t]*```[ \t]*(?:json)?\s*(?=\{)", re.MULTILINE | re.IGNORECASE)
"""The beginning of a block of code: JSON has no line breaks in texts, so that no line of a text begins so."""


@dataclass(frozen=True)
class Question:
    """The messages of a request, and the schema of its answer."""

    text: str
    schema: Mapping[str, Any]
    instructions: Sequence[str] = field(default=())
    """System messages; empty ones are not sent."""
    probabilities: bool = False
    """Whether the service is to send the probabilities of tokens."""

    def with_probabilities(self) -> "Question":
        """The question that asks for the probabilities of tokens too."""
        return dataclasses.replace(self, probabilities=True)

    def body(self, model: Model) -> dict[str, Any]:
        """The request. Without structured output, the schema is one more system message."""
        instructions = [text for text in self.instructions if text]
        body: dict[str, Any] = {"logprobs": True} if self.probabilities else {}
        if model.structured_output:
            asked = {"name": "answer", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": asked}
        else:
            instructions += [SCHEMA, json.dumps(self.schema)]
        system = [{"role": "system", "content": text} for text in instructions]
        return {**body, "messages": [*system, {"role": "user", "content": self.text}]}


async def ask(client: ModelClient, question: Question, read: Callable[[Any], ValueT], context: CallContext) -> ValueT:
    """Return what `read` makes of the parsed answer, as `answered` does."""
    value, _ = await answered(client, question, read, context)
    return value


async def answered(
    client: ModelClient, question: Question, read: Callable[[Any], ValueT], context: CallContext
) -> tuple[ValueT, dict[str, Any]]:
    """Return what `read` makes of the parsed answer, and the JSON of the completion.

    If it raises InvalidAnswer, or the answer is not JSON, the model gets its answer and the reason, and answers again.

    Raises:
        ModelError: The second answer is not valid either; or an error of `ModelClient.post` or `text_of`.
        RetryableError: A request may succeed later.
    """
    model = client.model
    body = question.body(model)
    answer = await client.post("chat/completions", body, context)
    text = text_of(answer, model)
    try:
        return read(parsed(text)), answer
    except InvalidAnswer as reason:
        messages = [
            *body["messages"],
            {"role": "assistant", "content": text},
            {"role": "user", "content": AGAIN},
            {"role": "user", "content": str(reason)},
        ]
    answer = await client.post("chat/completions", {**body, "messages": messages}, context)
    try:
        return read(parsed(text_of(answer, model))), answer
    except InvalidAnswer as reason:
        raise ModelError(f"model {model.name!r}: the answer is not valid, nor was the one before: {reason}") from None


def parsed(text: str) -> Any:
    """The JSON of an answer. Raises InvalidAnswer.

    Thoughts before it, a byte order mark, a block of code, and prose around an object are omitted, if the answer then
    has one object only, or several equal ones.
    """
    text = text.strip().removeprefix("\ufeff")
    try:
        return _loaded(text)
    except InvalidAnswer:
        found = next(filter(None, map(_objects, _without_thoughts(text))), [])
    if not found or any(each != found[0] for each in found):
        raise InvalidAnswer("it has several objects" if found else "it is not JSON")
    return found[0]


def _without_thoughts(text: str) -> list[str]:
    """What the answer without its thoughts may be, the likeliest first."""
    if thoughts := _THOUGHTS.match(text):
        return [text[thoughts.end() :]]
    if _BEGUN.match(text):
        return []
    ended = _ENDED.match(text)
    return [text[ended.end() :], text] if ended else [text]


def _objects(text: str) -> list[Any]:
    """The JSON objects in the blocks of code of a text, or else in the text.

    Empty if a brace begins something else, because an object may be a part of a broken one.
    """
    found: list[Any] = []
    for block in _BLOCK.finditer(text):
        with contextlib.suppress(ValueError, RecursionError):
            value, end = _DECODER.raw_decode(text, block.end())
            found += [value] if text[end:].lstrip().startswith("```") else []
    place = -1 if found else text.find("{")
    while place >= 0:
        try:
            value, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        found.append(value)
        place = text.find("{", end)
    return found


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidAnswer("it is not JSON") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
