"""Cases with several statements that give rows: each is run and judged as a case of its own.

`expected.statements` holds what is expected of each, in a list or by the name of its sink, its view or its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.conformance.cases import Case
from tests.conformance.checking import CaseError, described
from tests.conformance.verdict import Verdict

__all__ = ["joined", "separate"]

_FIELDS = ("statements", "queries", "selects", "sinks", "results")


def separate(case: Case) -> list[Case]:
    """Returns a case for every statement that gives rows. Without an expectation of its own it only has to run.

    Raises CaseError if there are more or fewer expectations than statements.
    """
    if len(case.shown) < 2:
        return [case]
    name = next((name for name in (*_FIELDS, "rows") if _is_of_each(name, case.expected.get(name))), None)
    if name is None:
        return [*(_part(case, query, {}) for _, query in case.shown[:-1]), case]
    given = case.expected[name]
    if isinstance(given, Mapping):
        given = [given.get(sink, given.get(str(place))) for place, (sink, _) in enumerate(case.shown, 1)]
    if len(given) != len(case.shown) or None in given:
        raise CaseError(f"expected.{name}", described(case.expected[name]), f"rows of {len(case.shown)} statements")
    common = {key: value for key, value in case.expected.items() if key != name}
    parts = [
        _part(case, query, {**common, **(own if isinstance(own, Mapping) else {"rows": own})})
        for (_, query), own in zip(case.shown, given, strict=True)
    ]
    # What stands beside `expected` is about the query, which is the last statement.
    last = {**case.expectation, **parts[-1].expectation}
    return [*parts[:-1], replace(parts[-1], expectation=last)]


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """Returns the verdict on all statements; the first one that is decided otherwise than by comparing decides."""
    if len(verdicts) == 1:
        return verdicts[0]
    return Verdict(
        problems=[f"statement {at}: {text}" for at, each in enumerate(verdicts, 1) for text in each.problems],
        unchecked=sorted({name for each in verdicts for name in each.unchecked}),
        notes=[note for each in verdicts for note in each.notes],
        compared=sum(each.compared for each in verdicts),
        wording=next((each.wording for each in verdicts if each.wording is not None), None),
        decided=next((each.decided for each in verdicts if each.decided is not None), None),
    )


def _is_of_each(name: str, given: Any) -> bool:
    """Whether a field holds what is expected of each statement; `rows` does if they are by sink."""
    return isinstance(given, Mapping) or (name != "rows" and isinstance(given, list))


def _part(case: Case, query: str, expected: Mapping[str, Any]) -> Case:
    told = {"expected": dict(expected)} if expected else {}
    return replace(
        case, query=query, shown=(("", query),), expectation=told, raw={**case.raw, "expected": dict(expected)}
    )
