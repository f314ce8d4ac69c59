"""Whether an error message has the expected content, by facts: names, numbers, and negations.

A message that lacks a fact may still be equivalent in other words; then a person has to compare the texts.
"""

import re
from dataclasses import dataclass

__all__ = ["Facts", "compared", "facts_of", "shared_words"]

_ASIDE = re.compile(
    r"\s*\([^)]*\b(?:error|operator|wording|only|guard|input is|table argument)\b[^)]*\)", re.IGNORECASE
)
_QUOTED = re.compile(r"(?<!\w)'([^']*)'|\"([^\"]*)\"|`([^`]*)`")
_TYPES = re.compile(r"\s*\bNOT NULL\b|\bVARCHAR\(\d+\)")
_UPPER = re.compile(r"\b[A-Z][A-Z_]{2,}\b(?: BY\b)?")
_SNAKE = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)|\b\d+(?=ms\b|s\b)")
_DENIED = re.compile(
    r"\b(?:not|n't|cannot|can't|doesn't|don't|never|no|without|isn't|aren't)\b|\b(?:un|in|non-)(?=\w)", re.I
)
_NEGATIVE = re.compile(
    r"\b(?:not|cannot|never|no|nor|without|neither|invalid|illegal|unknown|unsupported|missing|refused?|only|must|need\w*"
    r"|require\w*|expect\w*|fail\w*|error|none|ambiguous|duplicate|already|backwards?|mismatch|inconsistent|exactly"
    r"|timed|timeout|exception|lacks?|but|unable|read-only)\b|n't\b",
    re.IGNORECASE,
)
_VERBS = re.compile(r"\b(?:not|n't|cannot|can't|never)\s+(?:be\s+|yet\s+|been\s+)?(\w{4,})", re.IGNORECASE)
_LOOSE = frozenset(
    {"TABLE", "FOR", "THE", "AND", "NOT", "NULL", "AFTER", "WATERMARK", "TVF", "PTF", "PTFS", "UDF", "CLASS"}
)
_SYNONYMS = {"SUPPORTED": "SUPPORT", "TIMECOL": "DESCRIPTOR"}
_SILENT = re.compile(
    r"an?|and|are|as|at|be|been|but|by|can|could|currently|do|does|for|from|has|have|in|is|its?|must|no|not|of|on|or"
    r"|should|that|the|there|this|to|was|were|will|with|async|asynchronous|scalar|table|only|please|java|org|apache|flink"
    r"|exception|error"
)
_SAME = {
    "udf": "function", "udfs": "function", "method": "function", "eval": "function",
    "clause": "condition", "predicate": "condition", "filter": "condition", "conditions": "condition",
    "unsupported": "supported", "support": "supported", "supports": "supported", "allowed": "supported",
    "timeout": "timed", "argument": "parameter", "arguments": "parameter", "parameters": "parameter",
    "correlate": "lateral",
}  # fmt: skip
_STEM = 5


@dataclass(frozen=True)
class Facts:
    """The names and numbers that a message must contain, and stems of words that it must negate."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    denied: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.names or self.numbers or self.denied)


def facts_of(expected: str) -> Facts:
    """The facts in the gist of a message."""
    text = _TYPES.sub(lambda match: " STRING" if match[0].startswith("VAR") else "", _ASIDE.sub("", expected))
    quoted = [next(filter(None, match), "") for match in _QUOTED.findall(text)]
    plain = _QUOTED.sub(" ", text)
    names = [*quoted, *(n for n in _UPPER.findall(plain) if n not in _LOOSE), *_SNAKE.findall(plain)]
    for inside in re.findall(r"\[([^\]]*)\]", plain):
        names += [part.strip() for part in inside.split(",") if re.fullmatch(r"\s*[A-Za-z]\w*\s*", part)]
    denied = [_stem(word) for word in _VERBS.findall(plain)]
    return Facts(tuple(dict.fromkeys(filter(None, names))), tuple(dict.fromkeys(_NUMBER.findall(plain))), tuple(denied))


def compared(expected: str, message: str) -> tuple[bool, str]:
    """Returns whether the message has the facts, and those that it lacks."""
    if not re.search(r"\w", expected):
        return False, "the case gives no wording"
    if _whole(_ASIDE.sub("", expected).strip(" .!"), message) and _NEGATIVE.search(message):
        return True, ""
    if _whole(expected.strip(), message):
        return True, ""
    facts = facts_of(expected)
    if not facts:
        return False, "the gist has neither names nor numbers"
    lacks = [name for name in (*facts.names, *facts.numbers) if not _whole(name, message)]
    lacks += [f"not {stem}..." for stem in facts.denied if not _denies(stem, message)]
    if _NEGATIVE.search(expected) and not _NEGATIVE.search(message):
        lacks.append("a refusal")
    few = len(facts.names) + len(facts.numbers) + len(facts.denied) < 2 and shared_words(expected, message) < 0.5
    if not lacks and few:
        return False, "one fact alone does not tell it from other messages"
    return not lacks, ", ".join(lacks)


def shared_words(expected: str, message: str) -> float:
    """Returns the share of the significant words of the gist that the message has, or similar words."""
    wanted, found = _words(_ASIDE.sub("", expected)), {word[:_STEM] for word in _words(message)}
    return sum(word[:_STEM] in found for word in wanted) / len(wanted) if wanted else 0.0


def _whole(name: str, message: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", message, re.IGNORECASE) is not None


def _stem(word: str) -> str:
    return _SAME.get(word.lower(), word.lower())[:_STEM]


def _denies(stem: str, message: str) -> bool:
    """Whether the first word of this stem is negated."""
    for match in re.finditer(r"\w+", message):
        if _stem(match[0]) == stem:
            before = message[max(0, match.start() - 30) : match.start()].rpartition(".")[2]
            return bool(_DENIED.search(before) or re.match(r"un|in|non", match[0], re.IGNORECASE))
    return False


def _words(text: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    words = [word.lower() for word in re.findall(r"[A-Za-z]+|\d+", spaced)]
    return list(dict.fromkeys(_SAME.get(word, word) for word in words if not _SILENT.fullmatch(word)))
