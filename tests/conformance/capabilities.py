"""The cases that do not apply to this implementation, as capabilities.toml declares them."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import udf_server
from tests.conformance.cases import Case
from tests.conformance.observation import Observation

__all__ = ["Capabilities", "Capability"]

FILE = Path(__file__).with_name("capabilities.toml")


@dataclass(frozen=True)
class Capability:
    """A kind of case that does not apply. `refusal` is the expected error; `runs` means that there must be none.

    `absent` is a name that a function of the case needs and that must not exist in udf_server. `shows` is the
    difference that is found.
    """

    field: str
    pattern: str
    reason: str
    refusal: str = ""
    runs: bool = False
    absent: str = ""
    shows: str = ""

    def meets(self, case: Case) -> bool:
        """Whether the case is of the kind."""
        return any(re.search(self.pattern, text) for text in _texts(case, self.field)) and not self._is_there()

    @property
    def needs_no_run(self) -> bool:
        """Whether the case cannot be run at all."""
        return bool(self.absent)

    def _is_there(self) -> bool:
        found: Any = udf_server
        for part in self.absent.split(".") if self.absent else ():
            found = getattr(found, part, None)
        return bool(self.absent) and found is not None

    def happened(self, seen: Observation, problems: Sequence[str] = ()) -> bool:
        """Whether the declared outcome was observed; `problems` are the differences from the expectation."""
        if self.shows:
            return any(re.search(self.shows, each) for each in problems)
        failures = [run.failure for run in seen.runs if run.failure is not None]
        if self.runs:
            return bool(seen.runs) and not failures and not seen.contradictions
        return any(self.says(failure.message) for failure in failures)

    def says(self, message: str) -> bool:
        """Whether a message is the declared refusal."""
        return bool(self.refusal) and re.search(self.refusal, message) is not None


class Capabilities:
    """All capabilities, and the reasons for fields that are not checked."""

    def __init__(self, path: Path = FILE) -> None:
        document = tomllib.loads(path.read_text())
        self.all = [Capability(**each) for each in document.get("capability", ())]
        self.streams = [(each["refusal"], each["reason"]) for each in document.get("stream", ())]
        self.fields = {each["name"]: each["reason"] for each in document.get("field", ())}

    def of(self, case: Case) -> list[Capability]:
        """The capabilities that the case needs."""
        return [each for each in self.all if each.meets(case)]

    def leave_out_streams(self, seen: Observation) -> None:
        """Drops and notes the stream of a query that otherwise runs, if it was refused with a declared message."""
        if all(run.failure is not None for run in seen.runs):
            return
        for run in [run for run in seen.runs if run.how == "stream" and run.failure is not None]:
            assert run.failure is not None
            message = run.failure.message
            why = next((reason for refusal, reason in self.streams if re.search(refusal, message)), "")
            if why:
                seen.runs.remove(run)
                seen.notes.append(f"not run as a stream: {why}")

    def why_unchecked(self, field: str) -> str:
        """The declared reason, or "" if there is none."""
        return next((why for name, why in self.fields.items() if field == name or field.startswith(f"{name}.")), "")


def _texts(case: Case, field: str) -> Iterator[str]:
    match field:
        case "query":
            yield case.query
        case "error":
            yield case.error or ""
        case "fact":
            yield str(case.expectation.get("expected_fact") or "")
        case "description":
            yield str(case.raw.get("description") or "")
        case "config":
            yield from (f"{key}={value}" for key, value in case.config.items())
        case "tags":
            yield from map(str, case.raw.get("tags") or ())
        case "functions.behaviour":
            yield from (words.behaviour for words in case.functions)
        case "tables.columns.type":
            yield from (type_ for table in case.tables for _, type_ in table.columns)
        case "tables.changelog_mode":
            yield from (str(table.raw.get("changelog_mode") or "") for table in case.tables)
        case _:
            key = field.removeprefix("functions.arguments.")
            for words in case.functions:
                for argument in words.raw.get("arguments") or words.raw.get("args") or ():
                    yield from _flat(argument.get(key))


def _flat(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield from map(str, value)
    elif value is not None:
        yield str(value)
