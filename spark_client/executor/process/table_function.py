"""Arrow UDTFs of Spark: a request for the rows of each key, or for each batch of a table with row semantics."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from remote_udf.errors import InvalidCall
from remote_udf.process_planning import TableGiven, plan_process_call
from remote_udf.table_arguments import ArgumentTrait, TableArgument
from spark_client.base.calls import ProcessTableCall
from spark_client.base.errors import PlanError
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.executor.process.processing import ProcessTask
from spark_client.executor.stream.runtime import RUNTIME

__all__ = ["ArrowTableFunction", "handler_of"]


@dataclass(frozen=True)
class ArrowTableFunction:
    """A function with one table. `call` has no arguments yet; `schema` has the columns of the result."""

    call: ProcessTableCall
    schema: pa.Schema

    @property
    def table(self) -> TableArgument:
        """The table argument."""
        assert self.call.spec.process is not None
        return self.call.spec.process.tables[0]

    def given(
        self, arguments: Sequence[object], named: Mapping[str, object]
    ) -> tuple[pa.RecordBatch, dict[str, object]]:
        """The rows of the table, and the scalar arguments, which Spark repeats for each row. Raises PlanError."""
        spec, table = self.call.spec, self.table.name
        order = [parameter.name for parameter in spec.parameters]
        if len(arguments) > len(order):
            raise PlanError(f"function {spec.key} takes {len(order)} arguments: {spec.signature}")
        known = {name.casefold(): name for name in order}
        passed = dict(zip(order, arguments, strict=False))
        passed |= {known.get(name.casefold(), name): value for name, value in named.items()}
        rows = passed.pop(table, None)
        if not isinstance(rows, pa.RecordBatch):
            raise PlanError(f"function {spec.key}: Argument {table!r} expects a table to be passed: {spec.signature}")
        return rows, {name: value[0].as_py() for name, value in passed.items() if isinstance(value, pa.Array)}

    def plan(self, columns: pa.Schema, scalars: Mapping[str, object]) -> ProcessPlan:
        """What a task needs to process rows of these columns. Raises PlanError if the function does not take them."""
        spec = self.call.spec
        assert spec.process is not None
        # Spark has grouped the rows and does not tell by what, so the function gets a table without PARTITION BY.
        table = replace(self.table, traits=self.table.traits | {ArgumentTrait.OPTIONAL_PARTITION_BY})
        free = replace(spec, process=replace(spec.process, tables=(table,)))
        try:
            process = plan_process_call(free, {table.name: TableGiven(columns)}, scalars)
        except InvalidCall as error:
            raise PlanError(str(error)) from None
        return ProcessPlan(
            call=replace(self.call, process=process), keys=(), key_names=(), table=None, row_kind=None, time=None,
            rows=(0,), output=tuple((OutputSource.VALUE, index) for index in range(len(self.schema))),
            schema=self.schema, by_key=table.has_set_semantics,
        )  # fmt: skip


class _Streams:
    """The streams of a Spark task, on which its keys follow each other."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._task = ProcessTask(plan, RUNTIME)
        self._is_whole = True

    def processed(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The result for the rows of a key, or for any rows of a table with row semantics."""
        self._is_whole = False
        rows = (pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema)) for batch in batches)
        yield from self._task.process(pa.RecordBatch.from_arrays([each], ["row"]) for each in rows)
        self._is_whole = True

    def end(self) -> None:
        """End the streams; if the task failed, cancel them."""
        with closing(self._task):
            if self._is_whole:
                self._task.finish()


def handler_of(function: ArrowTableFunction) -> type:
    """The class of which Spark's worker makes an object for each key, and one for a task without keys or rows."""

    # No module has this class, so it is sent to workers by its contents.
    class Handler:
        streams: ClassVar[_Streams | None] = None
        """Those of the task, for all its keys. The scalar arguments are those of its first row."""

        def __init__(self) -> None:
            self.batches: list[pa.RecordBatch] = []

        def eval(self, *arguments: object, **named: object) -> Iterator[pa.RecordBatch]:
            batch, scalars = function.given(arguments, named)
            self.batches.append(batch)
            if Handler.streams is None:
                Handler.streams = _Streams(function.plan(batch.schema, scalars))
            if not function.table.has_set_semantics:
                yield from self.terminate()

        def terminate(self) -> Iterator[pa.RecordBatch]:
            batches, self.batches = self.batches, []
            if batches and Handler.streams is not None:
                yield from Handler.streams.processed(batches)

        def cleanup(self) -> None:
            streams, Handler.streams = Handler.streams, None
            if streams is not None:
                streams.end()

    return Handler
