"""Reads the operator's file of models, and refuses what cannot work with the reason."""

import json
import os
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from yarl import URL

from remote_udf.errors import InvalidOption
from remote_udf.option_values import size
from remote_udf.options import HOSTED_OPTIONS, SCALAR_OPTIONS
from udf_models.batches.settings import batch_settings_of
from udf_models.models import OPERATIONS, Model
from udf_models.redaction import redaction_of
from udf_models.shapes import Shape, shape_of
from udf_server import DeclarationError
from udf_server.base.implementations import options_of

__all__ = ["InvalidModels", "read_models"]

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
