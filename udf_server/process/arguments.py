"""Reads the signature of `eval`: which parameters are the context, state entries, tables and scalar arguments."""

import dataclasses
import inspect
import itertools
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa

from remote_udf.durations import parse_seconds
from remote_udf.errors import InvalidOption
from remote_udf.process_planning import MAX_TABLES
from remote_udf.table_arguments import SEMANTICS, ArgumentTrait, ConditionalTrait, TableArgument, with_conditional
from udf_server.base.errors import DeclarationError
from udf_server.declaring.annotations import AuthorCode, codecs_for, hints_of_code, signature_of, type_given
from udf_server.process.base import Row, StateHint, shown
from udf_server.process.context import ProcessContext
from udf_server.process.states import ListEntry, MapEntry, RecordEntry, StateEntry, ValueEntry
from udf_server.process.views import ListView, MapView, ValueView
from udf_server.values.codecs import Codec
from udf_server.values.records import StructCodec, is_record
from udf_server.values.values import codec_for_type

__all__ = ["Argument", "EvalParameters", "is_context", "read_arguments"]

RESERVED = ("on_time", "uid")
_OF_CHANGES = (ArgumentTrait.REQUIRE_UPDATE_BEFORE, ArgumentTrait.REQUIRE_FULL_DELETE)
_SET_ONLY = (ArgumentTrait.OPTIONAL_PARTITION_BY, *_OF_CHANGES, ArgumentTrait.ORDERED_BY_TIME)
"""Traits for tables with set semantics; those of changes are for tables with row semantics, too."""
_VIEWS = (ListView, MapView, ValueView)


@dataclass(frozen=True)
class Argument:
    """A table or a scalar argument. `codec` converts the rows of a typed table, or the scalar."""

    name: str
    table: TableArgument | None
    codec: Codec | None
    required: bool = True
    default: Any = None
    keyword: bool = False

    @property
    def type(self) -> pa.DataType:
        return pa.null() if self.codec is None else self.codec.type


@dataclass
class EvalParameters:
    """The parameters of `eval`, in order."""

    has_context: bool = False
    states: list[StateEntry] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)

    @property
    def tables(self) -> list[TableArgument]:
        return [argument.table for argument in self.arguments if argument.table is not None]


def read_arguments(where: str, code: AuthorCode) -> EvalParameters:
    """Read the parameters. Raises DeclarationError, which begins with `where` and names the parameter."""
    result = EvalParameters()
    hints = hints_of_code(code, where)
    for parameter in signature_of(code, where).parameters.values():
        place = f"{where}, parameter {parameter.name!r}"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DeclarationError(
                f"{place}: Process table functions require a non-overloaded, non-vararg, and static signature"
            )
        hint = hints.get(parameter.name)
        if is_context(parameter.name, hint):
            if result.has_context or result.states or result.arguments:
                raise DeclarationError(f"{place}: the context is the first parameter")
            result.has_context = True
            continue
        if hint is None:
            raise DeclarationError(
                f"{place}: Could not extract a data type: annotate it as a state entry, a table or a scalar argument"
            )
        traits, conditional, state = _notes(hint)
        if traits or conditional:
            result.arguments.append(_table(place, parameter, hint, traits, conditional))
        elif state is not None or _origin(hint) in _VIEWS:
            if result.arguments:
                raise DeclarationError(f"{place}: State entries must precede arguments")
            result.states.append(_state(place, parameter.name, hint, state or StateHint()))
        else:
            result.arguments.append(_scalar(place, parameter, hint))
    _require_sound(where, result)
    return result


def is_context(name: str, hint: type | None) -> bool:
    """Whether a first parameter with this annotation is the context."""
    return hint is ProcessContext or (hint is None and name in ("ctx", "context"))


def _notes(hint: type) -> tuple[frozenset[ArgumentTrait], tuple[ConditionalTrait, ...], StateHint | None]:
    if typing.get_origin(hint) is not Annotated:
        return frozenset(), (), None
    notes = typing.get_args(hint)[1:]
    # A trait is also a string, but not every string is a trait.
    traits = frozenset(note for note in notes if isinstance(note, ArgumentTrait))
    conditional = tuple(note for note in notes if isinstance(note, ConditionalTrait))
    return traits, conditional, next((note for note in notes if isinstance(note, StateHint)), None)


def _plain(hint: type) -> type:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _origin(hint: type) -> type:
    plain = _plain(hint)
    return typing.get_origin(plain) or plain


def _one(hint: type, place: str) -> Codec:
    try:
        codecs = codecs_for(hint, place)
    except DeclarationError as error:
        raise DeclarationError(f"{place}: Could not extract a data type: {error}") from error
    if len(codecs) > 1:
        raise DeclarationError(f"{place}: {hint} is not a single type")
    return codecs[0]


def _table(
    place: str, parameter: inspect.Parameter, hint: type, traits: frozenset[ArgumentTrait],
    conditional: tuple[ConditionalTrait, ...],
) -> Argument:  # fmt: skip
    if parameter.default is not parameter.empty:
        raise DeclarationError(f"{place}: Table arguments must not be optional")
    conditions = list(dict.fromkeys(each.conditions for each in conditional))
    for truths in itertools.product((False, True), repeat=len(conditions)):
        holds = dict(zip(conditions, truths, strict=True))
        met = [each for each in conditional if holds[each.conditions] is not each.negated]
        _require_traits(place, with_conditional(traits, met))
    plain, codec = _plain(hint), None
    if plain is not Row:
        codec = _one(plain, place)
        if not isinstance(codec, StructCodec):
            raise DeclarationError(f"{place}: a row of a table is a udf.Row or a dataclass, not {plain}")
        if ArgumentTrait.SUPPORT_UPDATES in with_conditional(traits, conditional):
            raise DeclarationError(
                f"{place}: Table arguments that support updates must use a row type, which shows the kind of change"
            )
    table = TableArgument(parameter.name, traits, None if codec is None else codec.type, conditional)
    return Argument(parameter.name, table, codec, keyword=parameter.kind is parameter.KEYWORD_ONLY)


def _require_traits(place: str, traits: frozenset[ArgumentTrait]) -> None:
    """Raises DeclarationError for traits that a table cannot have together."""
    if len(traits & SEMANTICS) != 1:
        raise DeclarationError(
            f"{place}: a table must have one of ROW_SEMANTIC_TABLE, SET_SEMANTIC_TABLE and BROADCAST_SEMANTIC_TABLE"
        )
    if ArgumentTrait.SET_SEMANTIC_TABLE not in traits:
        for trait in _SET_ONLY:
            if trait in traits and (trait not in _OF_CHANGES or _is_broadcast(traits)):
                raise DeclarationError(f"{place}: Trait {trait} requires SET_SEMANTIC_TABLE")
    if ArgumentTrait.NOTIFY_STATEFUL_SETS in traits and not _is_broadcast(traits):
        raise DeclarationError(f"{place}: Trait NOTIFY_STATEFUL_SETS requires BROADCAST_SEMANTIC_TABLE")
    if ArgumentTrait.SUPPORT_UPDATES not in traits:
        for trait in _OF_CHANGES:
            if trait in traits:
                raise DeclarationError(f"{place}: Trait {trait} requires SUPPORT_UPDATES")
    if ArgumentTrait.ORDERED_BY_TIME in traits and ArgumentTrait.REQUIRE_ON_TIME not in traits:
        raise DeclarationError(f"{place}: Trait ORDERED_BY_TIME requires REQUIRE_ON_TIME")
    if ArgumentTrait.SUPPORT_UPDATES in traits and ArgumentTrait.PASS_COLUMNS_THROUGH in traits:
        raise DeclarationError(f"{place}: Pass-through columns are not supported for tables that support updates")


def _is_broadcast(traits: frozenset[ArgumentTrait]) -> bool:
    return ArgumentTrait.BROADCAST_SEMANTIC_TABLE in traits


def _scalar(place: str, parameter: inspect.Parameter, hint: type) -> Argument:
    if hint is Row:
        raise DeclarationError(
            f"{place}: Could not extract a data type: declare the traits of a table, such as "
            "Annotated[Row, ArgumentTrait.SET_SEMANTIC_TABLE]"
        )
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    keyword = parameter.kind is parameter.KEYWORD_ONLY
    return Argument(parameter.name, None, _one(hint, place), required, default, keyword)


def _state(place: str, name: str, hint: type, state: StateHint) -> StateEntry:
    ttl = _ttl(place, state)
    plain, origin = _plain(hint), _origin(hint)
    inner = typing.get_args(plain)
    if origin in _VIEWS and len(inner) != (2 if origin is MapView else 1):
        raise DeclarationError(
            f"{place}: Could not extract a data type: say what it holds, such as {origin.__name__}[int]"
        )
    if origin is ListView:
        return ListEntry(name, _one(inner[0], place), ttl, state.broadcast)
    if origin is ValueView:
        return ValueEntry(name, _one(inner[0], place), ttl, state.broadcast)
    if origin is MapView:
        return MapEntry(name, _one(inner[1], place), ttl, state.broadcast, key=_one(inner[0], place))
    if plain is Row:
        if state.type is None:
            raise DeclarationError(f'{place}: Could not extract a data type: give StateHint(type="count bigint")')
        struct = type_given(f"struct<{state.type}>", place)
        assert struct is not None
        record = _record(struct)
        fields = {column.name: codec_for_type(column.type) for column in struct}
        return RecordEntry(name, StructCodec(fields, record), ttl, state.broadcast, record=record, untyped=True)
    if not is_record(plain):
        if plain in (object, Any):
            raise DeclarationError(f"{place}: Could not extract a data type from {plain}")
        raise DeclarationError(
            f"{place}: State entries that are read as a whole must be a composite type, a dataclass; {plain} goes "
            "into a ValueView, ListView or MapView"
        )
    codec = _one(plain, place)
    parameters = getattr(plain, "__dataclass_params__", None)
    if parameters is None or parameters.frozen:
        raise DeclarationError(
            f"{place}: State entries must provide an argument-less constructor so that all fields are mutable; "
            f"{plain.__name__} cannot be changed in place"
        )
    try:
        made = plain()
    except TypeError as error:
        raise DeclarationError(
            f"{place}: State entries must provide an argument-less constructor so that all fields are mutable: {error}"
        ) from error
    return RecordEntry(name, codec, ttl, state.broadcast, record=type(made))


def _ttl(place: str, state: StateHint) -> int | None:
    if state.ttl is None or state.ttl == "0":
        return None
    try:
        return round(parse_seconds(state.ttl) * 1000) or None
    except InvalidOption as error:
        raise DeclarationError(f"{place}: ttl: {error}") from error


def _record(struct: pa.DataType) -> type:
    """Create a class for the fields of a row in the state; initially all of them are None."""
    names = [column.name for column in struct]
    for name in names:
        if not name.isidentifier():
            raise DeclarationError(f"the fields of a state row must have valid Python names, not {name!r}")

    def shown_fields(self: Any) -> str:
        return f"+I[{', '.join(shown(getattr(self, name)) for name in names)}]"

    def name_of(key: int | str) -> str:
        if isinstance(key, str) and key not in names:
            raise KeyError(f"no field {key!r}, there are {', '.join(names)}")
        return key if isinstance(key, str) else names[key]

    def get(self: Any, key: int | str) -> Any:
        return getattr(self, name_of(key))

    def change(self: Any, key: int | str, value: Any) -> None:
        setattr(self, name_of(key), value)

    methods = {"__repr__": shown_fields, "__getitem__": get, "__setitem__": change}
    return dataclasses.make_dataclass("Row", [(name, Any, None) for name in names], repr=False, namespace=methods)


def _require_sound(where: str, found: EvalParameters) -> None:
    """Check rules that involve several parameters."""
    for argument in found.arguments:
        if argument.name in RESERVED:
            raise DeclarationError(
                f"{where}: Function signature must not declare system arguments. Reserved argument names are: "
                f"[{', '.join(RESERVED)}]"
            )
    tables = found.tables
    main = [table for table in tables if not table.is_broadcast]
    if len(tables) > MAX_TABLES:
        raise DeclarationError(f"{where}: Unsupported table argument count. At most {MAX_TABLES} tables are supported")
    if tables and not main:
        raise DeclarationError(f"{where}: a broadcast table requires another table with row or set semantics")
    if len(main) > 1 and not all(table.has_set_semantics for table in main):
        raise DeclarationError(
            f"{where}: All table arguments must use set semantics if multiple table arguments are declared"
        )
    if len(tables) > 1 and any(table.has(ArgumentTrait.PASS_COLUMNS_THROUGH) for table in tables):
        raise DeclarationError(
            f"{where}: Pass-through columns are not supported if multiple table arguments are declared"
        )
    scalars = [argument.name for argument in found.arguments if argument.table is None]
    for table in tables:
        for name in (name for each in table.conditional for name in each.arguments):
            if name not in scalars:
                raise DeclarationError(
                    f"{where}, parameter {table.name!r}: a trait depends on {name!r}, which is not a scalar argument; "
                    f"there are {', '.join(['has_partition_by', *scalars])}"
                )
        if table.has(ArgumentTrait.NOTIFY_STATEFUL_SETS) and all(entry.broadcast for entry in found.states):
            raise DeclarationError(
                f"{where}, parameter {table.name!r}: Trait NOTIFY_STATEFUL_SETS requires a state entry of a key"
            )
    for entry in found.states:
        if entry.broadcast and len(main) == len(tables):
            raise DeclarationError(
                f"{where}: Broadcast state entry {entry.name!r} requires at least one table argument with broadcast "
                "semantics"
            )
        if entry.broadcast and isinstance(entry, ListEntry):
            raise DeclarationError(f"{where}: Broadcast state entry {entry.name!r} cannot be a ListView")
        if not entry.broadcast and not any(table.has_set_semantics for table in main):
            raise DeclarationError(
                f"{where}: state entry {entry.name!r} needs tables with set semantics, whose rows have a key"
            )
