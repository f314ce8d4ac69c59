"""Facts in words that can be checked: "valid", "output columns are ...", "changelog mode ...".

A fact that matches no pattern stays unchecked.
"""

import re

from tests.conformance.observation import Observation

__all__ = ["holds", "is_applied", "takes_deletes"]

_COLUMNS = re.compile(
    r"(?:output|resolved|result) (?:columns? (?:are|is)|schema has exactly \w+ columns?:?)\s+(.+)$", re.I
)
_MODE = re.compile(r"changelog mode of the result is (\w+)", re.I)
_VALID = re.compile(r"^valid\b(?: (?:although|without|with)\b.*)?$", re.I | re.S)
_SCRIPT = re.compile(
    r"^(?:output )?rows are not asserted$|^only the (?:expect_\*|checked) steps are(?: asserted)?$", re.I
)
_KINDS = {"retract": {"+I", "-U", "+U", "-D"}, "insert": {"+I"}, "append": {"+I"}, "upsert": {"+I", "+U", "-D"}}
_APPLIED = re.compile(
    r"(?:after|once) (?:the |a |its )?changelog (?:is|was|has been) applied|end states? (?:is|are) (?:what|compared)"
    r"|only the end state|compare (?:the )?end states?|(?:final|materiali[sz]ed) (?:table|rows) (?:is|are) asserted",
    re.I,
)
_DELETES = re.compile(
    r"-D\b[^.;]*\b(?:for|instead of|in place of|as well as)\b[^.;]*-U\b|-U\b[^.;]*\b(?:may|can|could)\b[^.;]*-D\b", re.I
)


def is_applied(text: str) -> bool:
    """Whether a remark says that the table counts which a changelog produces, and not its changes."""
    return _APPLIED.search(text) is not None


def takes_deletes(text: str) -> bool:
    """Whether a remark allows a -D where the case has a -U."""
    return _DELETES.search(text) is not None


def holds(fact: str, seen: Observation, *, script: bool) -> tuple[bool, str]:
    """Returns whether the fact could be read, and what is wrong with it."""
    wrong: list[str] = []
    parts = [part.strip() for part in fact.split(";") if part.strip()]
    for part in parts:
        known, problem = _holds(part, seen, script)
        if not known:
            return False, ""
        wrong += [problem] if problem else []
    return bool(parts), "; ".join(wrong)


def _holds(part: str, seen: Observation, script: bool) -> tuple[bool, str]:
    runs = [run for run in seen.runs if run.columns is not None]
    if _SCRIPT.match(part):
        return script, ""
    if (match := _COLUMNS.search(part)) and runs:
        wanted = [name.strip(" `'.") for name in match[1].split(",")]
        found = [name for name, _ in runs[0].columns or ()]
        return True, "" if wanted == found else f"output columns are {found}, expected {wanted}"
    if (match := _MODE.search(part)) and runs:
        mode = seen.found.get("changelog mode")
        if mode is None or match[1].lower() not in _KINDS:
            return False, ""
        return True, "" if set(mode) == _KINDS[match[1].lower()] else f"the result has the kinds {mode}"
    if _VALID.match(part) and runs:
        return True, ""
    return False, ""
