"""The words for a failure: "completes exceptionally with a runtime error 'Error n' on the first 2 calls"."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.conformance.functions.expressions import NotUnderstood, Scope, text_of

__all__ = ["Failure", "read_failure"]

_NUMBERS = {"": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5}
_FAILS = re.compile(r"\b(fail|throw|raise|complete(s|d)? exceptionally|error|crash)", re.IGNORECASE)
_FIRST = re.compile(
    r"\bfirst(?:\s+(\d+|one|two|three|four|five))?\s+(?:invocation|call|attempt|tr(?:y|ie))s?\b", re.IGNORECASE
)
_TIMES = re.compile(r"\bfails?\s+(once|twice|(\d+|two|three|four|five)\s+times)\b", re.IGNORECASE)
_ALWAYS = re.compile(r"\b(always|never succeeds|every (invocation|call|attempt)|on each)\b", re.IGNORECASE)
_NEVER = re.compile(r"\b(never (completes|returns|answers|finishes)|hangs)\b", re.IGNORECASE)
_HARMLESS = re.compile(r"^(every|all) others?\b|throws? afterwards|\bno failure\b|\bnever fails\b", re.IGNORECASE)
_MESSAGE = re.compile(r"\b(?:error|exception|message|text)s?(?:\s+\w+)?\s+'([^']*)'|\bwith '([^']*)'", re.IGNORECASE)
_INPUT = re.compile(r"\b(?:call|invocation|attempt)s? (?:for|with|on) '([^']*)'", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:when|if|for)\s+(\w+)\s*(==|=|is|<=|>=|<>|!=|<|>)\s*('[^']*'|-?\d+)", re.IGNORECASE)
_OPERATORS = {
    "=": operator.eq, "==": operator.eq, "is": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """When a call fails, and with what text.

    `first` is the number of invocations that fail, None for all of them. If `hangs`, the function never
    answers instead. `applies` decides by the arguments; if `per_input`, each input to which it applies
    counts its own invocations. "Error n" contains the number of the invocation.
    """

    first: int | None = 0
    hangs: bool = False
    message: str = "this function fails"
    per_input: bool = False
    applies: Callable[[Scope], bool] = field(default=lambda scope: True, repr=False)

    def text(self, invocation: int) -> str:
        return re.sub(r"\bn$", str(invocation), self.message)

    def strikes(self, scope: Scope) -> bool:
        """Whether this invocation fails."""
        return self.applies(scope) and (self.first is None or scope.invocation <= self.first)


def read_failure(text: str) -> Failure:
    """Reads the failure from the words; none if there are no words. Raises NotUnderstood."""
    if not text.strip():
        return Failure()
    clauses = [clause for clause in re.split(r";|\.\s", text) if not _HARMLESS.search(clause.strip())]
    if not clauses:
        return Failure()
    clause = " ".join(clauses)
    message = _MESSAGE.search(clause)
    told = (message[1] or message[2]) if message else Failure.message
    given = _INPUT.search(clause)
    if message and given and given[0].endswith(message[0]):
        # "the call with 'x'" names an input.
        told = Failure.message
    applies, per_input = _applies(clause)
    if given is not None:
        wanted = given[1]
        applies, per_input = (lambda scope: wanted in map(text_of, scope.arguments.values())), True
    if _NEVER.search(clause):
        return Failure(None, True, told, applies=applies)
    first: int | None
    if match := _FIRST.search(clause):
        first = _number(match[1])
    elif match := _TIMES.search(clause):
        first = {"once": 1, "twice": 2}.get(match[1].lower()) or _number(match[2])
    elif _ALWAYS.search(clause) or (_CONDITION.search(clause) and _FAILS.search(clause)):
        first = None
    else:
        raise NotUnderstood(f"failure {text!r}")
    return Failure(first, False, told, per_input, applies)


def _applies(clause: str) -> tuple[Callable[[Scope], bool], bool]:
    condition = _CONDITION.search(clause)
    if condition is None:
        return (lambda scope: True), False
    name, compare = condition[1].lower(), _OPERATORS[condition[2].lower()]
    literal = condition[3]
    wanted = literal[1:-1] if literal.startswith("'") else int(literal)

    def applies(scope: Scope) -> bool:
        values = {key.lower(): value for key, value in scope.arguments.items()}
        value = values.get(name, next(iter(values.values()), None))
        return value is not None and bool(compare(value, wanted))

    return applies, True


def _number(text: str | None) -> int:
    word = (text or "").lower()
    return int(word) if word.isdigit() else _NUMBERS[word]
