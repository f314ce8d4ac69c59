"""Declares process table functions on the server. Everything is checked when the plugin is loaded."""

import functools
import inspect
import typing
from dataclasses import dataclass, replace

import pyarrow as pa

from remote_udf.functions import FunctionKind, NullCall, Parameter
from remote_udf.process_calls import ProcessCall
from remote_udf.result_columns import resolved
from remote_udf.row_kinds import ChangelogMode
from remote_udf.table_arguments import ProcessSignature, state_field
from udf_server.base.errors import DeclarationError
from udf_server.declaring.annotations import AuthorCode, hints_of_code, signature_of
from udf_server.declaring.functions import Function, implementation_of
from udf_server.process.arguments import Argument, EvalParameters, is_context, read_arguments
from udf_server.process.base import ProcessTableFunction
from udf_server.process.results import Results, results_given, results_of
from udf_server.process.states import StateEntry
from udf_server.values.records import StructCodec

__all__ = ["ProcessFunction", "declare_process", "is_process"]


@dataclass(kw_only=True)
class ProcessFunction(Function):
    """A process table function. `call` is its `eval`."""

    implementation: ProcessTableFunction
    arguments: list[Argument]
    states: list[StateEntry]
    results: Results
    eval_has_context: bool
    timer: AuthorCode | None
    timer_has_context: bool

    def in_call(self, call: ProcessCall) -> "ProcessFunction":
        """The function with what depends on this call: traits, result columns and kinds of row. Raises InvalidCall."""
        spec = resolved(self.spec, call)
        if self.results.told is None:
            return self if spec is self.spec else replace(self, spec=spec)
        assert spec.process is not None
        results = results_of(spec.result, spec.process.changelog_mode)
        return replace(self, spec=spec, results=results, result=StructCodec(dict(results.columns)))


def is_process(value: object) -> bool:
    """Whether a plugin may return this as a process table function."""
    if isinstance(value, type):
        return issubclass(value, ProcessTableFunction) and value is not ProcessTableFunction
    return isinstance(value, ProcessTableFunction)


def declare_process(given: ProcessTableFunction | type[ProcessTableFunction]) -> ProcessFunction:
    """Check and declare the function. Raises DeclarationError, which names function and parameter."""
    made = implementation_of(given)
    implementation, where = made.instance, made.where
    call = _eval_of(where, implementation)
    read = read_arguments(where, call)
    returned = hints_of_code(call, where).get("return")
    mode = implementation.changelog_mode
    results = results_given(where, implementation.returns, returned, mode)
    timer, timer_has_context = _timer(where, implementation, read)
    signature = ProcessSignature(
        tables=tuple(read.tables), state=_stored(read.states, broadcast=False),
        broadcast_state=_stored(read.states, broadcast=True), changelog_mode=mode,
    )  # fmt: skip
    _require_output(where, signature, mode)
    spec = made.spec(
        FunctionKind.PROCESS,
        NullCall.CALL,
        parameters=tuple(Parameter(argument.name, argument.type) for argument in read.arguments),
        result=results.type,
        required_parameters=sum(argument.required for argument in read.arguments),
        sees_key=True,
        process=signature,
    )
    return ProcessFunction(
        spec=spec,
        call=call,
        parameters=[[argument.codec] if argument.codec is not None else [] for argument in read.arguments],
        result=StructCodec(dict(results.columns)),
        context_parameter=None,
        origin=made.origin,
        is_async=_is_async(call) or (timer is not None and _is_async(timer)),
        opens=made.hooks("open"),
        closes=made.hooks("close"),
        implementation=implementation,
        arguments=read.arguments,
        states=read.states,
        results=results,
        eval_has_context=read.has_context,
        timer=timer,
        timer_has_context=timer_has_context,
    )


def _eval_of(where: str, implementation: ProcessTableFunction) -> AuthorCode:
    """The method `eval`. Raises DeclarationError unless there is one, and one only."""
    written = f"class {type(implementation).__name__}"
    call = getattr(implementation, "eval", None)
    if not callable(call):
        raise DeclarationError(f"{where}: {written} has no method 'eval'")
    if callable(getattr(implementation, "terminate", None)):
        raise DeclarationError(
            f"{where}: {written} has a method 'terminate', which is never called, unlike in a UDTF of "
            "PySpark's: let eval register a timer, and emit the last rows of a key in on_timer"
        )
    code = inspect.unwrap(getattr(call, "__func__", call))
    dispatched = isinstance(inspect.getattr_static(implementation, "eval"), functools.singledispatchmethod)
    if dispatched or typing.get_overloads(code):
        raise DeclarationError(
            f"{where}: Process table functions require a non-overloaded, non-vararg, and static signature: eval is "
            "overloaded; write one eval, or one function for each signature"
        )
    return call


def _is_async(code: AuthorCode) -> bool:
    return inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code)


def _stored(states: list[StateEntry], *, broadcast: bool) -> pa.Schema:
    stored = (entry for entry in states if entry.broadcast is broadcast)
    return pa.schema([state_field(entry.name, entry.codec.type, entry.ttl) for entry in stored])


def _timer(where: str, implementation: ProcessTableFunction, read: EvalParameters) -> tuple[AuthorCode | None, bool]:
    """Return `on_timer`, which receives the state of `eval`, and whether it receives the context."""
    timer = getattr(implementation, "on_timer", None)
    if timer is None:
        return None, False
    parameters = list(signature_of(timer, where).parameters)
    first = parameters[0] if parameters else ""
    has_context = is_context(first, hints_of_code(timer, where).get(first))
    found = parameters[has_context:]
    if len(found) != len(read.states):
        wanted = ", ".join(entry.name for entry in read.states)
        raise DeclarationError(
            f"{where}: on_timer takes the same state entries as eval in the same order ({wanted or 'none'}), not "
            f"{', '.join(found) or 'none'}"
        )
    return timer, has_context


def _require_output(where: str, signature: ProcessSignature, mode: ChangelogMode) -> None:
    if mode.is_insert_only:
        return
    if signature.passes_columns_through:
        raise DeclarationError(
            f"{where}: Pass-through columns are not supported for functions that emit updates {mode}"
        )
    for table in signature.main_tables:
        if mode.is_upsert and not table.has_set_semantics:
            raise DeclarationError(
                f"{where}: PTFs that take table arguments with row semantics don't support upsert output. Table "
                f"argument {table.name!r} must use set semantics"
            )
