"""Reads the operator's file of models, and refuses what cannot work with the reason."""

import json
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from yarl import URL

from remote_udf.errors import InvalidOption
from remote_udf.option_tables import option, read_values, table_of
from remote_udf.option_values import ValueReader, reader, size
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_models.batches.settings import batch_settings_of
from udf_models.models import OPERATIONS, Model
from udf_models.redaction import redaction_of
from udf_models.shapes import Shape, shape_of
from udf_server import DeclarationError
from udf_server.declaring.functions import options_of

__all__ = ["InvalidModels", "read_models"]

MOST_SAMPLES = 100
_NAME = "its name becomes part of names of functions, so use letters, digits and underscores"
_RESERVED = ("model", "messages", "input", "query", "documents", "stream", "n", "response_format", "encoding_format")
"""Fields of requests that functions set."""


ValueT = TypeVar("ValueT")


def _of(kind: type[ValueT], expected: str) -> ValueReader[ValueT]:
    def read(value: Any) -> ValueT:
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise InvalidOption(f"{value!r} is not {expected}")
        return value

    return ValueReader(read, str, kind.__name__)


_text, _switch, _whole = _of(str, "a text"), _of(bool, "true or false"), _of(int, "a whole number")
_list, _table = _of(list, "a list"), _of(dict, "a table")


@reader("float")
def _price(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"{value!r} is not a number")
    if not 0 <= value < float("inf"):
        raise InvalidOption(f"{value!r} is not a number of at least 0")
    return float(value)


@reader("Count")
def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidOption(f"{value!r} is not a size, such as '2 MB'")
    return size(value)


@reader("int")
def _samples(value: Any) -> int:
    number = _whole(value)
    if not 2 <= number <= MOST_SAMPLES:
        raise InvalidOption(f"{value!r} is not a number from 2 to {MOST_SAMPLES}")
    return number


@dataclass(frozen=True)
class _Written:
    """The table of a model as the operator has written it. The README explains the settings."""

    url: str = option(_text, "", "URL of the service")
    model: str = option(_text, "", "its name at the service")
    key_variable: str | None = option(_text, None, "environment variable with the key")
    functions: list[Any] | None = option(_list, None, "what the model can do")
    parameters: dict[str, Any] | None = option(_table, None, "fields of every request")
    usd_per_million_tokens_in: float | None = option(_price, None, "price of prompts")
    usd_per_million_tokens_out: float | None = option(_price, None, "price of answers")
    max_prompt_bytes: int = option(_size, Model.prompt_bytes, "largest request")
    max_answer_bytes: int = option(_size, Model.answer_bytes, "largest answer")
    keep_cut_answers: bool = option(_switch, False, "whether an answer that reached the maximum is a value")
    structured_output: bool = option(_switch, True, "whether the service takes the schema of an answer")
    answers: dict[str, Any] | None = option(_table, None, "the shapes of answers by name")
    with_usage: bool = option(_switch, False, "whether functions have twins that return their cost")
    confidence_samples: int | None = option(_samples, None, "number of answers that are compared")
    show_service_messages: bool = option(_switch, False, "whether errors show what the service says")
    redact: str | None = option(_text, None, "what changes the texts of rows")
    options: dict[str, Any] | None = option(_table, None, "defaults of call options")
    batch: dict[str, Any] | None = option(_table, None, "settings of batches")


class InvalidModels(ValueError):
    """The file of models cannot be used; the message names the file and the model, and never a key."""


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
    _require_different([(model.name, f"model {model.name!r}") for model in models], path)
    answers = [(name, f"answers.{name} of model {model.name!r}") for model in models for name in model.answers]
    _require_different(answers, path)
    return models


def _require_different(names: Sequence[tuple[str, str]], path: Path) -> None:
    """Functions have these names, each with what has it, and SQL compares names without case."""
    seen: dict[str, str] = {}
    for name, what in names:
        if name.casefold() in seen:
            raise InvalidModels(
                f"{path}: {seen[name.casefold()]} and {what} have one name; names are compared without case"
            )
        seen[name.casefold()] = what


def _model(name: str, table: Any, hosts: Collection[str] | None, environment: Mapping[str, str], folder: Path) -> Model:
    if not (name.isascii() and name.isidentifier()):
        raise ValueError(_NAME)
    if not isinstance(table, dict):
        raise ValueError(f"is {table!r} and not a table with url and model")
    known = table_of(_Written)
    if unknown := sorted(table.keys() - known.keys()):
        raise ValueError(f"has {', '.join(unknown)}; known are {', '.join(known)}")
    written = _Written(**read_values(known, table, lambda setting: setting.name))
    if missing := [wanted for wanted in ("url", "model") if not table.get(wanted)]:
        raise ValueError(f"has no {', '.join(missing)}")
    parameters, answers = written.parameters or {}, written.answers or {}
    _require_json(parameters)
    if taken := sorted(set(_RESERVED) & parameters.keys()):
        raise ValueError(f"parameters: the functions set {', '.join(taken)}")
    return Model(
        name,
        _url(written.url, hosts),
        written.model,
        key=None if written.key_variable is None else _key(written.key_variable, environment),
        functions=_functions(written.functions, answers),
        parameters=parameters,
        usd_in=written.usd_per_million_tokens_in,
        usd_out=written.usd_per_million_tokens_out,
        prompt_bytes=written.max_prompt_bytes,
        answer_bytes=written.max_answer_bytes,
        keep_cut_answers=written.keep_cut_answers,
        structured_output=written.structured_output,
        answers=_answers(answers, folder),
        with_usage=written.with_usage,
        confidence_samples=written.confidence_samples,
        show_service_messages=written.show_service_messages,
        redact=None if written.redact is None else redaction_of(written.redact),
        batch=batch_settings_of(written.batch or {}),
        options=_options(written.options or {}),
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


def _functions(names: list[Any] | None, answers: Mapping[str, Any]) -> tuple[str, ...]:
    if not names and answers:
        return ()
    if names is None:
        return ("complete",)
    if not names or len(set(map(str, names))) < len(names) or not all(name in OPERATIONS for name in names):
        raise ValueError(f"functions: {names!r} is not a list of different names among {', '.join(OPERATIONS)}")
    return tuple(names)


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
