"""Model: a named model of the operator's file, with its service, its parameters, its prices and its limits."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yarl import URL

from udf_models.batches.settings import BatchSettings
from udf_models.redaction import Redaction
from udf_models.shapes import Shape

__all__ = ["OPERATIONS", "TOKEN_BYTES", "Model"]

OPERATIONS = (
    "complete", "complete_batch", "complete_image", "classify", "classify_with_confidence", "extract", "embed",
    "rerank",
)  # fmt: skip
"""What a model can do. A function's name begins with it. Answers of a model are functions too."""
GUESSED_ANSWER_TOKENS = 500
"""Estimate of the tokens of an answer if `parameters` does not limit them."""
TOKEN_BYTES = 4
"""Estimate of the bytes of a token."""


@dataclass(frozen=True)
class Model:
    """A model of a service. Its repr shows no key."""

    name: str
    url: URL = field(repr=False)
    """Ends with a slash; paths such as chat/completions are relative to it."""
    model: str
    """Its name at the service."""
    key: str | None = field(default=None, repr=False)
    functions: tuple[str, ...] = ("complete",)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request, such as temperature."""
    usd_in: float | None = None
    usd_out: float | None = None
    """Price of a million tokens of prompts and of answers."""
    prompt_bytes: int = 1 << 20
    """Largest prompt, texts and instructions together."""
    answer_bytes: int = 8 << 20
    """Largest body of an answer."""
    keep_cut_answers: bool = False
    """Whether an answer that reached the maximum number of tokens is a value, and not an error."""
    structured_output: bool = True
    """Whether the service takes the schema of an answer; if not, it is a message."""
    answers: Mapping[str, Shape] = field(default_factory=dict)
    """What answers of complete_json have to be, by name."""
    with_usage: bool = False
    """Whether each function, but not those of batches, has a twin that also returns what the call has cost."""
    confidence_samples: int | None = None
    """Number of answers that classify_with_confidence compares; None to use the probabilities of tokens."""
    show_service_messages: bool = False
    """Whether errors show what the service says, which may repeat a prompt."""
    redact: Redaction | None = None
    """Changes the texts of rows before they are sent."""
    batch: BatchSettings = field(default_factory=BatchSettings)
    """How its batches are submitted, asked about and kept."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of call options."""

    def digest(self, *more: Any) -> str:
        """What distinguishes its answers from those of another model: a text with a hash of service and parameters."""
        what = [str(self.url), self.model, self.parameters, self.keep_cut_answers, self.structured_output]
        what += [self.redact.name] if self.redact is not None else []
        what += more
        text = json.dumps(what, sort_keys=True, default=str)
        return f"{self.model} {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def usd(self, tokens_in: float, tokens_out: float) -> float | None:
        """The price of these tokens; None if the file has no price."""
        if self.usd_in is None and self.usd_out is None:
            return None
        return (tokens_in * (self.usd_in or 0.0) + tokens_out * (self.usd_out or 0.0)) / 1e6

    def estimate(self, prompt_bytes: float, *, answers: bool) -> dict[str, float]:
        """What a request costs at most, approximately, by unit. `answers` says whether the model writes text."""
        tokens_in, tokens_out = prompt_bytes / TOKEN_BYTES, float(self._most_answer_tokens() if answers else 0)
        amounts = {"tokens": tokens_in + tokens_out, "tokens_in": tokens_in, "tokens_out": tokens_out}
        usd = self.usd(tokens_in, tokens_out)
        return amounts if usd is None else {**amounts, "usd": usd}

    def estimate_batch(self, prompt_bytes: float, requests: int) -> dict[str, float]:
        """What requests of a batch cost at most, approximately, in units of what is submitted and not yet spent."""
        each = self.estimate(prompt_bytes / requests if requests else 0, answers=True)
        amounts = {"tokens_submitted": each["tokens"] * requests}
        if "usd" in each:
            amounts["usd_submitted"] = each["usd"] * requests * (1 - self.batch.discount)
        return amounts

    def _most_answer_tokens(self) -> float:
        for name in ("max_completion_tokens", "max_tokens"):
            found = self.parameters.get(name)
            if isinstance(found, int) and found > 0:
                return found
        return GUESSED_ANSWER_TOKENS
