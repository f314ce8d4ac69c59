"""Redaction: the operator's function changes the texts of rows before they are sent to the service."""

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Redaction", "RedactionFailed", "redaction_of"]


class RedactionFailed(Exception):
    """The function failed, so nothing is sent. The message has no part of a text."""


class Redaction:
    """A function from text to text, by the name that the file gives it."""

    def __init__(self, name: str, function: Callable[[str], object]) -> None:
        self.name = name
        self._function = function

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request with the texts of rows changed: prompts, texts, queries and documents.

        System messages are left, because labels, fields and schemas are among them. Raises RedactionFailed.
        """
        changed: dict[str, Any] = {
            name: self._value(body[name]) for name in ("input", "query", "documents") if name in body
        }
        if "messages" in body:
            changed["messages"] = [
                {**message, "content": self._value(message["content"])} if message["role"] == "user" else message
                for message in body["messages"]
            ]
        return {**body, **changed}

    def _value(self, value: Any) -> Any:
        """A text, the texts of a list, or the text of a part of a message."""
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if isinstance(value, dict):
            return {**value, "text": self._value(value["text"])} if "text" in value else value
        try:
            text = self._function(value)
        except Exception as error:  # the operator's code may raise anything
            raise RedactionFailed(f"redact, {self.name}, raised {type(error).__name__}") from None
        if not isinstance(text, str):
            raise RedactionFailed(f"redact, {self.name}, returned {type(text).__name__}, expected a text")
        return text

    def __repr__(self) -> str:
        return self.name


def redaction_of(name: str) -> Redaction:
    """The function `module:function`. Raises ValueError if there is none."""
    try:
        function = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(f"redact: {name!r} cannot be imported; expected module:function") from None
    if not callable(function):
        raise ValueError(f"redact: {name!r} is not a function")
    return Redaction(name, function)
