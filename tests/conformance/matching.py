"""Which function of which server stands for a function in words.

A function of the user's file comes first. One whose description tells a behaviour of some case is for
that behaviour alone; any other is for every case that names it, as long as it takes as many arguments.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remote_udf.functions import FunctionSpec
from tests.conformance.cases import FunctionWords

__all__ = ["described", "given_function"]


@dataclass(frozen=True)
class _Told:
    """What a description must hold."""

    behaviour: str
    failure: str


def given_function(
    words: FunctionWords, functions: Sequence[FunctionSpec], everything: Iterable[FunctionWords]
) -> FunctionSpec | None:
    """The function of the user's file for these words; None if it has none.

    `everything` holds the words of all cases. Of several versions the highest wins, unless one is
    described.
    """
    fitting = [spec for spec in functions if _takes(spec, len(words.arguments))]
    telling = [spec for spec in fitting if described(spec, words)]
    named = [spec for spec in telling if _same_name(spec, words)] or telling
    if named:
        return named[-1]
    others = [other for other in everything if other != words]
    free = [
        spec
        for spec in fitting
        if _same_name(spec, words) and not any(_same_name(spec, other) and described(spec, other) for other in others)
    ]
    return free[-1] if free else None


def described(spec: FunctionSpec, words: FunctionWords) -> bool:
    """Whether the function's description holds the behaviour and the failure in words."""
    text = _plain(spec.description)
    told = _Told(_plain(words.behaviour), _plain(words.failure))
    return bool(told.behaviour) and told.behaviour in text and told.failure in text


def _takes(spec: FunctionSpec, arguments: int) -> bool:
    most = len(spec.parameters)
    return spec.required_parameters <= arguments and (arguments <= most or spec.variadic)


def _same_name(spec: FunctionSpec, words: FunctionWords) -> bool:
    return spec.name.lower() == words.name.lower()


def _plain(text: str) -> str:
    """Letters, digits and signs that mean something, one blank between."""
    return " ".join(re.findall(r"\w+|[-+*/=<>%#$]", text.lower()))
