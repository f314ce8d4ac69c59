"""Process table functions of the cases: signatures from their words, bodies by name."""

import dataclasses
import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import udf_server as udf
from remote_udf.ddl import parse_type as arrow_type
from remote_udf.errors import RemoteUdfError
from tests.conformance.cases import Case, FunctionWords
from tests.conformance.column_types import parse_type
from tests.conformance.functions.process_bodies import BODIES, MODES, TIMERS
from tests.conformance.functions.wrong_declarations import declared_wrongly
from udf_server import ArgumentTrait, StateHint
from udf_server.process.declaration import declare_process

__all__ = ["NotBuilt", "build_process_table", "process_functions", "process_name"]

_SEMANTICS = {
    "row-semantic table": ArgumentTrait.ROW_SEMANTIC_TABLE,
    "set-semantic table": ArgumentTrait.SET_SEMANTIC_TABLE,
    "broadcast-semantic table": ArgumentTrait.BROADCAST_SEMANTIC_TABLE,
}
_STRUCTURED = re.compile(r"(\w+)\s*\((.*)\)", re.DOTALL)
_FIELD = re.compile(r"\s*(\w+)\s+([A-Z]+(?:<[^>]*>)?)([^,]*)(?:,|$)")


class NotBuilt(Exception):
    """The words name a body that does not exist here."""


def process_name(case: Case, position: int = 0) -> str:
    """Returns the name of a case's function on the server."""
    return re.sub(r"\W", "_", case.id) + (f"_{position}" if position else "")


def process_functions(cases: Iterable[Case]) -> list[udf.ProcessTableFunction]:
    """Returns the functions that can be built, for the server of the runner."""
    built = []
    for case in cases:
        for position, words in enumerate(case.functions):
            if words.raw.get("timers") is None or words.raw.get("state") is None:
                continue
            try:
                kind = build_process_table(
                    words, process_name(case, position), case.config.get("output.changelog_mode")
                )
                declare_process(kind)
            except (NotBuilt, ValueError, RemoteUdfError):
                continue
            built.append(kind())
    return built


def build_process_table(words: FunctionWords, name: str, output: str | None = None) -> type[udf.ProcessTableFunction]:
    """Returns a class with the signature in words and the body of its name; `output` are the changes it declares.

    Raises NotBuilt, ValueError, and DeclarationError if the declaration is invalid.
    """
    plain = words.name.removesuffix(" with TTL")
    if (wrong := declared_wrongly(words, name)) is not None:
        return wrong
    if plain not in BODIES:
        raise NotBuilt(f"no body for {words.name}")
    body, timer = BODIES[plain], TIMERS.get(plain)
    states = [(each["name"], _state(each)) for each in words.raw.get("state") or ()]
    arguments = [_argument(each) for each in words.raw["arguments"]]
    arguments.sort(key=lambda each: each[2])
    state_names, argument_names = [name for name, _ in states], [each[0] for each in arguments]

    rows = {
        each["name"]
        for each in words.raw["arguments"]
        if str(each["type"]).startswith("ROW") and each["kind"] == "scalar"
    }

    def evaluate(ctx: udf.ProcessContext, *given: Any) -> Any:
        held = dict(zip(state_names, given, strict=False))
        values = [
            _row(value) if name in rows else value
            for name, value in zip(argument_names, given[len(states) :], strict=True)
        ]
        return body(ctx, held, dict(zip(argument_names, values, strict=True)))

    def on_timer(ctx: udf.ProcessContext, *given: Any) -> Any:
        assert timer is not None
        return timer(ctx, dict(zip(state_names, given, strict=True)))

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    ctx = inspect.Parameter("ctx", positional, annotation=udf.ProcessContext)
    held = [inspect.Parameter(each, positional, annotation=hint) for each, hint in states]
    taken = [
        inspect.Parameter(each, positional, annotation=hint, default=None if optional else inspect.Parameter.empty)
        for each, hint, optional in arguments
    ]
    _signed(evaluate, [ctx, *held, *taken])
    _signed(on_timer, [ctx, *held])
    members: dict[str, Any] = {
        "eval": staticmethod(evaluate), "name": name, "returns": _returns(words.returns, argument_names),
        "changelog_mode": MODES.get(plain, udf.ChangelogMode()) if output is None
        else udf.ChangelogMode.of(*re.findall(r"[+-][IUD]", output)), "__doc__": words.behaviour,
    }  # fmt: skip
    if timer is not None:
        members["on_timer"] = staticmethod(on_timer)
    return type("Built", (udf.ProcessTableFunction,), members)


def _row(value: dict[str, Any] | None) -> udf.Row | None:
    return None if value is None else udf.Row(**value)


def _signed(code: Any, parameters: list[inspect.Parameter]) -> None:
    code.__signature__ = inspect.Signature(parameters)
    code.__annotations__ = {each.name: each.annotation for each in parameters}


def _argument(told: dict[str, Any]) -> tuple[str, Any, bool]:
    """Returns the name, the annotation, and whether the argument is optional."""
    name, type_ = told["name"], str(told["type"])
    if told["kind"] in _SEMANTICS:
        traits = [
            _SEMANTICS[told["kind"]],
            *(ArgumentTrait[each] for each in told.get("traits") or () if each in ArgumentTrait.__members__),
        ]
        row: Any = udf.Row
        if (match := _STRUCTURED.match(type_)) and match[1] != "ROW":
            row = _record(match[1], match[2])
        return name, Annotated[row, *traits], False
    optional = "optional" in type_
    plain = re.sub(r"\(.*?\)|,?\s*optional.*|,\s*default.*", "", type_).strip()
    if plain.startswith("DESCRIPTOR"):
        return name, Annotated[list[str], "array<string>"], optional
    if plain == "duration":
        plain = "INTERVAL DAY TO SECOND"
    return name, Annotated[object, arrow_type(parse_type(plain).ddl)], optional


def _state(told: dict[str, Any]) -> Any:
    kind, type_ = str(told["kind"]), str(told["type"])
    hint = StateHint(ttl=told.get("ttl"), broadcast="broadcast" in kind)
    views: Any = udf
    if "list view" in kind:
        return Annotated[views.ListView[_element(type_, 0)], hint]
    if "map view" in kind:
        return Annotated[views.MapView[_element(type_, 0), _element(type_, 1)], hint]
    if "value view" in kind:
        return Annotated[views.ValueView[_annotation(type_)], hint]
    if type_.startswith("ROW<"):
        fields = parse_type(type_)
        ddl = ", ".join(f"{name} {part.ddl}" for name, part in zip(fields.names, fields.parts, strict=True))
        return Annotated[udf.Row, dataclasses.replace(hint, type=ddl)]
    if type_ == "object":
        return Annotated[object, hint]
    if "only a 1-argument constructor" in type_:
        return Annotated[dataclasses.make_dataclass("Final", [("value", int)], frozen=True), hint]
    match = _STRUCTURED.match(type_)
    if match is None:
        match = re.match(r"(\w+)()", "Score")
        return Annotated[_record("Score", "s STRING null, i INT null", ""), hint]
    return Annotated[_record(match[1], match[2], str(told.get("default") or "")), hint]


def _annotation(type_: str) -> Any:
    return Annotated[object, arrow_type(parse_type(type_).ddl)]


def _element(type_: str, index: int) -> Any:
    return Annotated[object, arrow_type(parse_type(type_).parts[index].ddl)]


def _record(name: str, fields: str, default: str = "") -> type:
    """Returns a dataclass of "s STRING null, i INT NOT NULL default 0"; it prints as in the cases."""
    values = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", default)}
    made = []
    for field, type_, rest in _FIELD.findall(fields):
        number = re.search(r"default (-?\d+)", rest)
        container = {"ARRAY": list, "MAP": dict}.get(type_.partition("<")[0]) if "initially empty" in fields else None
        spec: Any
        if container is not None:
            spec = dataclasses.field(default_factory=container)
        else:
            spec = dataclasses.field(default=int(number[1]) if number else values.get(field))
        made.append((field, _annotation(type_), spec))
    kind: type[Any] = dataclasses.make_dataclass(name, made)

    def shown(self: Any) -> str:
        return f"{name}({', '.join(f'{each}={_quoted(self, each)}' for each, _, _ in made)})"

    kind.__repr__ = shown  # type: ignore[assignment]
    return kind


def _quoted(record: Any, field: str) -> str:
    value = getattr(record, field)
    shown = "null" if value is None else str(value)
    # The cases print stats without quotes and scores with them.
    return f"'{shown}'" if field == "s" else shown


def _returns(text: str, arguments: Sequence[str]) -> Any:
    if text == "the incoming change":
        return (udf.columns_of(arguments[0]),)
    if text in ("zero columns", ""):
        return ""
    if text == "not asserted" or text.startswith(("the incoming", "forwards")):
        return "out string"
    if "(atomic)" in text:
        return "string"
    if (match := _STRUCTURED.match(text)) is not None:
        text = match[2]
    if text.startswith("ts, watermark"):
        return "ts timestamp, watermark timestamp, value int"
    if text.startswith("name, count, mode"):
        return "name string, count bigint, mode string"
    columns = []
    for part in re.split(r",\s*(?![^<]*>)", text):
        name, _, type_ = part.strip().partition(" ")
        columns.append(f"`{name}` {parse_type(type_).ddl}")
    return ", ".join(columns)
