"""Model: a named model of the operator's file, with its service, its parameters, its prices and its limits."""

import hashlib
import json
import os
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yarl import URL

from remote_udf.errors import InvalidOption
from remote_udf.option_values import size
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_models.batches.settings import BatchSettings, batch_settings_of
from udf_models.redaction import Redaction, redaction_of
from udf_models.shapes import Shape, shape_of
from udf_server import DeclarationError
from udf_server.base.implementations import options_of

__all__ = ["OPERATIONS", "TOKEN_BYTES", "InvalidModels", "Model", "read_models"]

OPERATIONS = (
    "complete", "complete_batch", "complete_image", "classify", "classify_with_confidence", "extract", "embed",
    "rerank",
)  # fmt: skip
"""What a model can do. A function's name begins with it. Answers of a model are functions too."""
GUESSED_ANSWER_TOKENS = 500
"""Estimate of the tokens of an answer if `parameters` does not limit them."""
TOKEN_BYTES = 4
"""Estimate of the bytes of a token."""


class InvalidModels(ValueError):
    """The file of models cannot be used; the message names the file and the model, and never a key."""


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


MOST_SAMPLES = 100
_NAME = "its name becomes part of names of functions, so use letters, digits and underscores"
_KNOWN: dict[str, Any] = {
    "url": str, "model": str, "key-variable": str, "functions": list, "parameters": dict,
    "usd-per-million-tokens-in": (int, float), "usd-per-million-tokens-out": (int, float),
    "max-prompt-bytes": (int, str), "max-answer-bytes": (int, str), "keep-cut-answers": bool,
    "structured-output": bool, "answers": dict, "with-usage": bool, "confidence-samples": int,
    "show-service-messages": bool, "redact": str, "options": dict, "batch": dict,
}  # fmt: skip
_EXPECTED: Mapping[Any, str] = {
    str: "a text", bool: "true or false", int: "a whole number", list: "a list", dict: "a table",
    (int, float): "a number", (int, str): "a size, such as '2 MB'",
}  # fmt: skip
_RESERVED = ("model", "messages", "input", "query", "documents", "stream", "n", "response_format", "encoding_format")
"""Fields of requests that functions set."""


def read_models(path: Path, hosts: Collection[str] | None, environment: Mapping[str, str] = os.environ) -> list[Model]:
    """Return the models of a TOML file in its order.

    Args:
        path: The file. Each of its tables `[models.NAME]` is a model.
        hosts: The hosts that the file may name; None for all.
        environment: Where the keys are.

    Raises:
        InvalidModels: The file cannot be read, or a model is not valid.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidModels(f"{path}: {error}") from None
    if unknown := sorted(tables.keys() - {"models"}):
        raise InvalidModels(f"{path}: has {', '.join(unknown)}; known is models")
    found = tables.get("models")
    if not isinstance(found, dict) or not found:
        raise InvalidModels(f"{path}: has no table [models.NAME]")
    models = []
    for name, table in found.items():
        try:
            models.append(_model(name, table, hosts, environment, path.parent))
        except (ValueError, InvalidOption, DeclarationError) as error:
            raise InvalidModels(f"{path}, model {name!r}: {error}") from None
    return models


def _model(name: str, table: Any, hosts: Collection[str] | None, environment: Mapping[str, str], folder: Path) -> Model:
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(_NAME)
    if not isinstance(table, dict):
        raise ValueError(f"is {table!r} and not a table with url and model")
    if unknown := sorted(table.keys() - _KNOWN.keys()):
        raise ValueError(f"has {', '.join(unknown)}; known are {', '.join(_KNOWN)}")
    for wanted, kind in _KNOWN.items():
        value = table.get(wanted)
        if value is not None and (not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))):
            raise ValueError(f"{wanted}: {value!r} is not {_EXPECTED[kind]}")
    if missing := [wanted for wanted in ("url", "model") if not table.get(wanted)]:
        raise ValueError(f"has no {', '.join(missing)}")
    parameters = table.get("parameters", {})
    _require_json(parameters)
    if taken := sorted(set(_RESERVED) & parameters.keys()):
        raise ValueError(f"parameters: the functions set {', '.join(taken)}")
    return Model(
        name,
        _url(table["url"], hosts),
        table["model"],
        key=_key(table["key-variable"], environment) if "key-variable" in table else None,
        functions=_functions(table.get("functions", [] if table.get("answers") else ["complete"]), table),
        parameters=parameters,
        usd_in=_price(table, "usd-per-million-tokens-in"),
        usd_out=_price(table, "usd-per-million-tokens-out"),
        prompt_bytes=_size(table, "max-prompt-bytes", Model.prompt_bytes),
        answer_bytes=_size(table, "max-answer-bytes", Model.answer_bytes),
        keep_cut_answers=table.get("keep-cut-answers", False),
        structured_output=table.get("structured-output", True),
        answers=_answers(table.get("answers", {}), folder),
        with_usage=table.get("with-usage", False),
        confidence_samples=_samples(table.get("confidence-samples")),
        show_service_messages=table.get("show-service-messages", False),
        redact=redaction_of(table["redact"]) if "redact" in table else None,
        batch=batch_settings_of(table.get("batch", {})),
        options=_options(table.get("options", {})),
    )


def _url(text: str, hosts: Collection[str] | None) -> URL:
    try:
        url = URL(text)
    except ValueError:
        raise ValueError("url: is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("url: is not an http or https URL with a host")
    if url.query_string or url.fragment or url.user or url.password:
        raise ValueError("url: has a user, a query or a fragment; name the variable of a key in key-variable")
    if hosts is not None and url.host.lower() not in hosts:
        raise ValueError(f"url: host {url.host} is not in UDF_MODELS_HOSTS ({', '.join(sorted(hosts))})")
    return url if url.path.endswith("/") else url.with_path(url.path + "/")


def _key(variable: str, environment: Mapping[str, str]) -> str:
    key = environment.get(variable, "")
    if not key:
        raise ValueError(f"key-variable: the environment variable {variable} is not set")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ValueError(f"key-variable: the value of {variable} is no key: it has spaces or characters beyond ASCII")
    return key


def _answers(tables: Mapping[str, Any], folder: Path) -> dict[str, Shape]:
    shapes = {}
    for name, table in tables.items():
        if not (name.isascii() and name.isidentifier()):
            raise ValueError(f"answers.{name}: {_NAME}")
        try:
            shapes[name] = shape_of(table, folder)
        except ValueError as error:
            raise ValueError(f"answers.{name}: {error}") from None
    return shapes


def _functions(names: list[Any], table: Mapping[str, Any]) -> tuple[str, ...]:
    if not names and table.get("answers"):
        return ()
    if not names or len(set(map(str, names))) < len(names) or not all(name in OPERATIONS for name in names):
        raise ValueError(f"functions: {names!r} is not a list of different names among {', '.join(OPERATIONS)}")
    return tuple(names)


def _price(table: Mapping[str, Any], name: str) -> float | None:
    price = table.get(name)
    if price is None:
        return None
    if not 0 <= price < float("inf"):
        raise ValueError(f"{name}: {price!r} is not a number of at least 0")
    return float(price)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of calls, and nothing else that `udf_server.scalar` takes."""
    options = {option.replace("-", "_"): value for option, value in given.items()}
    options_of(options, "options", SCALAR_OPTIONS, HOSTED_OPTIONS)
    return options


def _require_json(parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError(f"parameters: {name} is {value!r}, and JSON has no such values") from None


def _samples(found: int | None) -> int | None:
    if found is not None and not 2 <= found <= MOST_SAMPLES:
        raise ValueError(f"confidence-samples: {found!r} is not a number from 2 to {MOST_SAMPLES}")
    return found


def _size(table: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return size(table.get(name, default))
    except InvalidOption as error:
        raise ValueError(f"{name}: {error}") from None
