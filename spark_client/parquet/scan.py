"""Reads the Parquet files of a task: splits in, batches with Spark's types out."""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from spark_client.base.errors import ReadFailed
from spark_client.executor.files import is_of_time, located, naming
from spark_client.parquet.conform import Calendars, columns_in_old_calendar, conformed, named, require_one_calendar

__all__ = ["ScanColumn", "ScanPlan", "Split", "over_files", "read_splits", "row_groups"]

BATCH_ROWS = 65_536
BATCH_BYTES = 4 << 20
"""The size of a batch, by the average row of a file."""
TEXT_ROWS = 4_096
"""The maximum rows of a batch with columns of no fixed width, as in Spark. Dictionaries make files of them small."""


class Split(NamedTuple):
    """The part of a file that one task reads: the row groups whose middle is from `start` to `end`."""

    file: int
    start: int
    end: int


class ScanColumn(NamedTuple):
    """A column of the result. `partition` is its position in `ScanPlan.files` if directories contain its values.

    `bytewise` is false if Spark considers values equal that differ, as in a text with a collation.
    """

    name: str
    type: pa.DataType
    partition: int | None = None
    bytewise: bool = True


@dataclass(frozen=True)
class ScanPlan:
    """The plan of a scan. `files` has the URI of each file, its size, when it was written, in milliseconds since
    1970, then the values of partition columns.

    `condition` refers to the names of `columns`; `output` has the positions of the columns of the result.
    """

    files: pa.Table
    tasks: tuple[tuple[Split, ...], ...]
    columns: tuple[ScanColumn, ...]
    output: tuple[int, ...]
    calendars: Calendars
    case_sensitive: bool
    condition: ds.Expression | None = None
    condition_columns: tuple[int, ...] = ()


def over_files(
    plan: ScanPlan, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run an operator over the rows of files instead of Spark's. The files are closed when it ends, early or not."""
    with contextlib.closing(read_splits(plan, tasks)) as batches:
        yield from run(batches)


def read_splits(plan: ScanPlan, tasks: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Read the splits of the tasks whose numbers are in the first column.

    Raises ReadFailed, which names the file.
    """
    for batch in tasks:
        for task in batch.column(0).to_pylist():
            for split in plan.tasks[task]:
                yield from _Reading(plan, split).batches()


class _Reading:
    """The reading of one split."""

    def __init__(self, plan: ScanPlan, split: Split) -> None:
        self._plan = plan
        self._split = split
        self._path = str(plan.files.column(0)[split.file])
        needed = dict.fromkeys([*plan.output, *plan.condition_columns])
        self._columns = {position: plan.columns[position] for position in needed}

    def batches(self) -> Iterator[pa.RecordBatch]:
        with contextlib.ExitStack() as cleanup:
            with self._naming_the_file():
                file, groups = self._open(cleanup)
                if not groups:
                    return
                reader = self._read(file, groups)
            while True:
                with self._naming_the_file():
                    batch = next(reader, None)
                if batch is None:
                    return
                if batch.num_rows:
                    yield batch

    def _open(self, cleanup: contextlib.ExitStack) -> tuple[pq.ParquetFile, list[int]]:
        system, path = located(self._path)
        source = cleanup.enter_context(system.open_input_file(path))
        size = self._plan.files.column(1)[self._split.file].as_py()
        found = f"{source.size()} bytes, and had {size}" if source.size() != size else ""
        if not found and not is_of_time(system, path, self._plan.files.column(2)[self._split.file].as_py()):
            found = "another time of modification than it had"
        if found:
            raise ReadFailed(
                f"file {self._path} has {found} when read_parquet listed it; it was written again meanwhile, so call "
                "read_parquet again"
            )
        # Requests to an object store are few and large, those to a local disk only as large as necessary.
        distant = not isinstance(system, fs.LocalFileSystem)
        file = cleanup.enter_context(pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=distant))
        groups = row_groups(file.metadata, size, self._split.start, self._split.end)
        return file, self._matching(system, path, file, groups)

    def _matching(self, system: fs.FileSystem, path: str, file: pq.ParquetFile, groups: list[int]) -> list[int]:
        """The row groups that may have matching rows, by their statistics."""
        plan, schema = self._plan, file.schema_arrow
        if plan.condition is None or not groups:
            return groups
        # The statistics are in the calendar of the file. Its rows are read, so that old ones are refused.
        old = columns_in_old_calendar(file, plan.calendars)
        for column in (plan.columns[position] for position in plan.condition_columns):
            index = schema.get_field_index(column.name)
            # A file may have a column with the name of a partition column, whose values do not count.
            if column.partition is not None or index < 0 or schema.field(index).type != column.type:
                return groups
            if column.name in old and pa.types.is_temporal(column.type):
                return groups
        fragment = ds.ParquetFileFormat().make_fragment(path, filesystem=system, row_groups=groups)

        def matching(condition: ds.Expression) -> set[int]:
            return {group.id for group in fragment.subset(condition, schema=schema).row_groups}

        found = matching(plan.condition)
        for column in (plan.columns[position] for position in plan.condition_columns):
            if pa.types.is_floating(column.type):
                # Statistics ignore NaN. pyarrow takes the value that all others have for that of every row.
                field = pc.field(column.name)
                found.update(set(groups) - matching(pc.is_nan(field) | field.is_null()))
        return sorted(found)

    def _read(self, file: pq.ParquetFile, groups: list[int]) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        fields = list(file.schema_arrow.names)
        names = {name: position for position, name in enumerate(fields)}
        in_file: dict[int, str] = {}
        for position, column in self._columns.items():
            found = None
            if column.partition is None:
                where = f"file {self._path}"
                found = named(names, fields, column.name, where, case_sensitive=plan.case_sensitive)
            if found is not None:
                in_file[position] = fields[found]
        old = columns_in_old_calendar(file, plan.calendars)
        for batch in self._stored(file, groups, sorted(set(in_file.values()))):
            arrays = {}
            for position, column in self._columns.items():
                if position in in_file:
                    arrays[position] = self._conformed(
                        batch.column(in_file[position]), column, in_file[position] in old
                    )
                elif column.partition is None:
                    arrays[position] = pa.nulls(batch.num_rows, column.type)
                else:
                    value = plan.files.column(column.partition)[self._split.file]
                    arrays[position] = pa.repeat(value.cast(column.type), batch.num_rows)
            yield self._result(arrays)

    def _stored(self, file: pq.ParquetFile, groups: list[int], names: list[str]) -> Iterator[pa.RecordBatch]:
        """The columns of these names; without any, batches of no columns that have the right number of rows."""
        metadata = file.metadata
        rows = sum(metadata.row_group(index).num_rows for index in groups)
        if not names:
            for begin in range(0, rows, BATCH_ROWS):
                empty = pa.Array.from_buffers(pa.struct([]), min(BATCH_ROWS, rows - begin), [None])
                yield pa.RecordBatch.from_struct_array(empty)
            return
        bytes_ = sum(metadata.row_group(index).total_byte_size for index in groups)
        types = [file.schema_arrow.field(name).type for name in names]
        fixed = all(pa.types.is_primitive(type_) or pa.types.is_decimal(type_) for type_ in types)
        most = BATCH_ROWS if fixed else TEXT_ROWS
        size = max(min(most, BATCH_BYTES * rows // max(bytes_, 1)), 1)
        # Row groups have their own dictionaries, which pyarrow cannot join within nested columns.
        apart = any(_has_dictionary(each.type) for each in file.schema_arrow if each.type.num_fields)
        for part in ([index] for index in groups) if apart else [groups]:
            # Columns whose names have dots may come with others, so they are chosen by name from each batch.
            yield from file.iter_batches(size, row_groups=part, columns=names, use_threads=False)

    def _conformed(self, array: pa.Array, column: ScanColumn, old: bool) -> pa.Array:
        where = f"column {column.name!r} of file {self._path}"
        found = conformed(array, column.type, where, case_sensitive=self._plan.case_sensitive)
        if old:
            # Times in the form INT96 have their zone only in the second one, and dates that become times the first one.
            require_one_calendar(array, where)
            require_one_calendar(found, where)
        return found

    def _result(self, arrays: dict[int, pa.Array]) -> pa.RecordBatch:
        plan = self._plan
        if plan.condition is not None:
            names = [plan.columns[position].name for position in arrays]
            kept = pa.RecordBatch.from_arrays(list(arrays.values()), names=names).filter(plan.condition)
            arrays = dict(zip(arrays, kept.columns, strict=True))
        chosen = [arrays[position] for position in plan.output]
        return pa.RecordBatch.from_arrays(chosen, names=[str(index) for index in range(len(chosen))])

    @contextlib.contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        with naming(f"file {self._path} cannot be read", ReadFailed):
            try:
                yield
            except FileNotFoundError:
                raise ReadFailed(
                    f"file {self._path} is gone; it was there when read_parquet listed it, so call read_parquet again. "
                    "If it exists, it is not on this machine: workers read files themselves, so all need access to them"
                ) from None


def _has_dictionary(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return True
    return any(_has_dictionary(type_.field(index).type) for index in range(type_.num_fields))


def row_groups(metadata: pq.FileMetaData, size: int, start: int, end: int) -> list[int]:
    """The row groups whose middle row is in this range of the file's bytes; so each belongs to one split of a file.

    Rows are taken for equally long. The places of columns would be exact, but pyarrow ends the process when it reads
    the place of a column that a damaged footer describes wrongly.
    """
    rows = [max(metadata.row_group(index).num_rows, 0) for index in range(metadata.num_row_groups)]
    ends = list(itertools.accumulate(rows))
    whole = max(ends[-1], 1) if ends else 1
    middles = [min(size * (2 * last - count) // (2 * whole), size - 1) for last, count in zip(ends, rows, strict=True)]
    return [index for index, middle in enumerate(middles) if start <= middle < end]
