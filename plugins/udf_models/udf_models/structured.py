"""Asks for an answer in JSON, checks it, and asks once more if it is not as requested."""

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
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


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
    """The JSON of an answer, which may be in a block of code. Raises InvalidAnswer."""
    fenced = _FENCED.fullmatch(text)
    try:
        return json.loads(fenced[1] if fenced else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidAnswer("it is not JSON") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
