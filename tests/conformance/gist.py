"""Whether an error message says what a case expects it to say, in whatever words."""

import re

__all__ = ["missing_words", "says"]

ENOUGH = 0.6
"""Share of the expected message's significant words that must come back."""
STEM = 5

_SILENT = re.compile(
    r"an?|and|are|as|at|be|been|but|by|can|could|currently|do|does|for|from|has|have|in|is|its?|must|no|of|on|or|should"
    r"|that|the|there|this|to|was|were|will|with|async|asynchronous|scalar|table|only|please|java|org|apache|flink"
    r"|exception|error"
)
_SAME = {
    "udf": "function", "udfs": "function", "method": "function", "eval": "function",
    "clause": "condition", "predicate": "condition", "filter": "condition", "conditions": "condition",
    "unsupported": "supported", "support": "supported", "supports": "supported", "allowed": "supported",
    "timeout": "timed", "argument": "parameter", "arguments": "parameter", "parameters": "parameter",
    "correlate": "lateral",
}  # fmt: skip


def says(expected: str, message: str) -> bool:
    """Whether the message holds the expected text, or most of its significant words or their like."""
    if expected.lower() in message.lower():
        return True
    words = _words(expected)
    return bool(words) and 1 - len(missing_words(expected, message)) / len(words) >= ENOUGH


def missing_words(expected: str, message: str) -> list[str]:
    """The significant words of the expected message that the other does not have."""
    found = {word[:STEM] for word in _words(message)}
    return [word for word in _words(expected) if word[:STEM] not in found]


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    words = [word.lower() for word in re.findall(r"[A-Za-z]+|\d+", spaced)]
    return list(dict.fromkeys(_SAME.get(word, word) for word in words if not _SILENT.fullmatch(word)))
