"""Parts of `read_parquet` that need no Spark: types, calendars, row groups, splits and file systems."""

import datetime
from pathlib import Path
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from spark_client.base.errors import PlanError, ReadFailed
from spark_client.executor.files import located
from spark_client.parquet.conform import Calendars, conformed
from spark_client.parquet.reading import byte_setting, plan_scan, tasks_of
from spark_client.parquet.scan import ScanColumn, ScanPlan, Split, read_splits, row_groups


def widened(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return conformed(array, type_, "column 'x' of file f", case_sensitive=False)


@pytest.mark.parametrize(
    ("array", "type_"),
    [
        (pa.array([1, None], pa.int8()), pa.int64()),
        (pa.array([2**32 - 1], pa.uint32()), pa.int64()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary()),
        (pa.array([[1], None, []], pa.large_list(pa.int32())), pa.list_(pa.int64())),
        (pa.array([2**31 - 1, None], pa.int32()), pa.decimal128(12, 2)),
        (pa.array([-(2**63), None]), pa.decimal128(22, 2)),
        (pa.array(["ü", None]), pa.binary()),
        (pa.array([datetime.date(1500, 1, 1), None]), pa.timestamp("us")),
        (pa.nulls(2), pa.int32()),
        (pa.array([[None]]), pa.list_(pa.struct([("a", pa.string())]))),
        (pa.array([[1], None, []], pa.list_view(pa.int32())), pa.list_(pa.int64())),
        (pa.array([[1], None, []], pa.large_list_view(pa.int32())), pa.list_(pa.int64())),
        (pa.array(["a", None, "b" * 40], pa.string_view()), pa.string()),
        (pa.array([b"a", None, b"b" * 40], pa.binary_view()), pa.binary()),
        (pa.array([{"A": 1}, None]), pa.struct([("a", pa.int64())])),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int16())),
    ],
)
def test_values_are_kept_when_types_are_widened(array, type_):
    # A slice shows whether offsets are respected.
    for part in (array, pa.concat_arrays([array, array]).slice(len(array))):
        found = widened(part, type_)
        values = [{"a": each["A"]} if isinstance(each, dict) else each for each in part.to_pylist()]
        if pa.types.is_date(array.type):
            values = [each and datetime.datetime.combine(each, datetime.time()) for each in values]
        assert found.equals(pa.array(values, type_))


@pytest.mark.parametrize(
    ("found", "type_"),
    [
        (pa.int64(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.decimal128(10, 3), pa.decimal128(10, 2)),
        (pa.string(), pa.int64()),
        (pa.int64(), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.decimal128(11, 2)),
        (pa.int64(), pa.decimal128(21, 2)),
        (pa.uint32(), pa.decimal128(38, 2)),
    ],
)
def test_values_are_never_narrowed(found, type_):
    with pytest.raises(ReadFailed, match=r"column 'x' of file f: the file has type .* and Spark reads the column as"):
        widened(pa.nulls(1, found), type_)


def test_a_field_that_a_struct_does_not_have_is_null():
    found = widened(pa.array([{"b": 1}, None]), pa.struct([("a", pa.string()), ("B", pa.int64())]))
    assert found.to_pylist() == [{"a": None, "B": 1}, None]


def test_fields_that_differ_in_case_only_are_ambiguous():
    array = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "A"])
    with pytest.raises(ReadFailed, match=r"'a' is ambiguous, because the file has a, A"):
        widened(array, pa.struct([("a", pa.int64()), ("b", pa.int64())]))


SIZES = st.lists(st.integers(1, 1 << 32), max_size=12)


@given(SIZES, st.integers(1, 64), st.sampled_from([0, 1, 1 << 22]))
def test_splits_cover_every_byte_once(sizes, parallelism, open_cost):
    tasks = tasks_of(sizes, 1 << 27, open_cost, parallelism)
    splits = sorted(split for task in tasks for split in task)
    for file, size in enumerate(sizes):
        own = [split for split in splits if split.file == file]
        assert [split.start for split in own] == [0, *(split.end for split in own[:-1])]
        assert own[-1].end == size
    assert all(task for task in tasks)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0), ("7", 7), ("134217728b", 1 << 27), (" 128MB ", 1 << 27), ("3k", 3 << 10), ("3KB", 3 << 10),
        ("3m", 3 << 20), ("3mb", 3 << 20), ("3g", 3 << 30), ("3gb", 3 << 30), ("3t", 3 << 40), ("3tb", 3 << 40),
        ("1p", 1 << 50), ("1PB", 1 << 50),
    ],
)  # fmt: skip
def test_sizes_are_read_with_the_units_that_spark_has(text, expected):
    assert byte_setting("spark.sql.files.openCostInBytes", text) == expected


@pytest.mark.parametrize("text", ["", "p", "1.5g", "1e", "1kk", "1bb", "-1", "1 g", "\u0663", "9" * 5_000])
def test_a_size_that_spark_does_not_read_is_refused_by_name(text):
    with pytest.raises(PlanError, match=r"files\.openCostInBytes=.* is not a size of at least 0 bytes"):
        byte_setting("spark.sql.files.openCostInBytes", text)


def test_no_size_of_a_task_is_zero():
    with pytest.raises(PlanError, match=r"maxPartitionBytes='0k' is not a size of at least 1 bytes"):
        byte_setting("spark.sql.files.maxPartitionBytes", "0k", 1)


def test_every_row_group_belongs_to_one_split(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": list(range(5000))}), path, row_group_size=300)
    size, metadata = path.stat().st_size, pq.read_metadata(path)
    for step in (size, 4000, 777, 50):
        found = [row_groups(metadata, size, start, min(start + step, size)) for start in range(0, size, step)]
        assert sorted(group for groups in found for group in groups) == list(range(17))


def test_uris_are_located_in_their_file_system(tmp_path):
    (tmp_path / "a b%20=ü.txt").write_text("local")
    system, path = located((tmp_path / "a b%20=ü.txt").as_uri())
    assert system.open_input_file(path).read() == b"local"
    fsspec.filesystem("memory").pipe("/folder/a b.txt", b"in memory")
    system, path = located("memory:///folder/a%20b.txt")
    assert system.open_input_file(path).read() == b"in memory"


def plan_of(path: str, size: int, **changes: object) -> ScanPlan:
    file = Path(unquote(path.removeprefix("file://")))
    time = file.stat().st_mtime_ns // 1_000_000 if file.exists() else 0
    files = pa.table({"path": [path], "size": [size], "time": [time], "day": pa.array([7], pa.int32())})
    columns = (ScanColumn("x", pa.int64()), ScanColumn("day", pa.int32(), 3), ScanColumn("gone", pa.string()))
    plan = {"tasks": ((Split(0, 0, size),),), "output": (0, 1, 2), "case_sensitive": False, **changes}
    return ScanPlan(files=files, columns=columns, calendars=Calendars(datetimes=True, int96=True), **plan)


def read(plan: ScanPlan) -> pa.Table:
    return pa.Table.from_batches(read_splits(plan, iter([pa.record_batch({"id": [0]})])))


def test_values_of_directories_and_nulls_are_added(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    plan = plan_of(path.as_uri(), path.stat().st_size)
    assert read(plan).to_pydict() == {"0": [1, 2], "1": [7, 7], "2": [None, None]}
    only_directories = plan_of(path.as_uri(), path.stat().st_size, output=(1,))
    assert read(only_directories).to_pydict() == {"0": [7, 7]}


def test_a_condition_on_a_partition_column_skips_nothing_by_a_column_of_the_file(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1, 2], "day": pa.array([5, 5], pa.int32())}), path)
    condition = (pc.field("day") == pa.scalar(7, pa.int32())) | (pc.field("x") == 9)
    plan = plan_of(path.as_uri(), path.stat().st_size, condition=condition, condition_columns=(0, 1))
    assert read(plan).to_pydict() == {"0": [1, 2], "1": [7, 7], "2": [None, None]}


def test_a_batch_of_wide_rows_has_few_of_them(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": ["a" * 100_000 + str(row) for row in range(200)]}), path, compression="none")
    plan = plan_of(path.as_uri(), path.stat().st_size, output=(0,))
    plan = ScanPlan(**{**vars(plan), "columns": (ScanColumn("x", pa.string()),)})
    batches = list(read_splits(plan, iter([pa.record_batch({"id": [0]})])))
    assert sum(batch.num_rows for batch in batches) == 200
    assert max(batch.nbytes for batch in batches) < 10 << 20


@pytest.mark.parametrize("wide", ["a" * 10_000, ["a" * 10_000], {"a": "a" * 10_000}, [1.5] * 1_250])
def test_a_batch_of_wide_rows_has_few_of_them_although_a_dictionary_has_them_once(tmp_path, wide):
    path, values = tmp_path / "x.parquet", pa.array([wide])
    pq.write_table(pa.table({"x": pa.concat_arrays([values] * 9_000)}), path)
    assert path.stat().st_size < 1 << 20
    plan = plan_of(path.as_uri(), path.stat().st_size, output=(0,))
    plan = ScanPlan(**{**vars(plan), "columns": (ScanColumn("x", values.type),)})
    batches = [(batch.num_rows, batch.nbytes) for batch in read_splits(plan, iter([pa.record_batch({"id": [0]})]))]
    assert sum(rows for rows, _ in batches) == 9_000
    assert max(size for _, size in batches) < 50 << 20


def test_nested_dictionaries_of_several_row_groups_are_read(tmp_path):
    path, texts = tmp_path / "x.parquet", pa.array(["a", "b", "a"]).dictionary_encode()
    listed = pa.ListArray.from_arrays([0, 2, 2, 3], texts)
    pq.write_table(pa.table({"x": listed, "gone": texts}), path, row_group_size=1)
    plan = plan_of(path.as_uri(), path.stat().st_size, output=(0, 2))
    plan = ScanPlan(**{**vars(plan), "columns": (ScanColumn("x", pa.list_(pa.string())), *plan.columns[1:])})
    assert read(plan).to_pydict() == {"0": [["a", "b"], [], ["a"]], "1": ["a", "b", "a"]}


@pytest.mark.parametrize("day", [datetime.date(1500, 1, 1), datetime.date(1500, 1, 10), datetime.date(2020, 1, 1)])
def test_a_filter_of_dates_does_not_skip_the_refusal_of_old_ones(tmp_path, day):
    path = tmp_path / "x.parquet"
    days = pa.table({"day": pa.array([datetime.date(1500, 1, 10)])})
    with pq.ParquetWriter(path, days.schema, store_schema=False) as writer:
        writer.write_table(days)
        writer.add_key_value_metadata({"org.apache.spark.version": "2.4.5"})
    plan = plan_of(
        path.as_uri(), path.stat().st_size, output=(0,), condition=pc.field("day") == pa.scalar(day),
        condition_columns=(0,),
    )  # fmt: skip
    plan = ScanPlan(**{**vars(plan), "columns": (ScanColumn("day", pa.date32()),)})
    with pytest.raises(ReadFailed, match="hybrid calendar"):
        read(plan)


@pytest.mark.parametrize("days", [pa.array([-200_000], pa.date32()), pa.array([[-200_000]], pa.list_view(pa.date32()))])
def test_old_dates_that_become_times_are_refused(tmp_path, days):
    path, type_ = tmp_path / "x.parquet", pa.timestamp("us")
    table = pa.table({"x": days}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    pq.write_table(table, path)
    plan = plan_of(path.as_uri(), path.stat().st_size, output=(0,))
    column = ScanColumn("x", pa.list_(type_) if pa.types.is_list_view(days.type) else type_)
    with pytest.raises(ReadFailed, match="hybrid calendar"):
        read(ScanPlan(**{**vars(plan), "columns": (column,)}))


@pytest.mark.parametrize("others", [[0.5], [0.5, None], [0.5, 0.75], [None], [-0.0, 0.0]])
def test_rows_of_nan_are_not_skipped_by_statistics_that_ignore_it(tmp_path, others):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [float("nan"), *others]}), path)
    plan = plan_of(
        path.as_uri(), path.stat().st_size, output=(1,), condition_columns=(0,),
        condition=(pc.field("x") > 1.0) | pc.is_nan(pc.field("x")),
    )  # fmt: skip
    plan = ScanPlan(**{**vars(plan), "columns": (ScanColumn("x", pa.float64()), *plan.columns[1:])})
    assert read(plan).num_rows == 1


@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1, 2]}), path)
    whole = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": whole[:-10], "text": b"PAR1 is not enough PAR1"}[damage])
    with pytest.raises(ReadFailed, match=rf"file file://{tmp_path}/x.parquet cannot be read: "):
        read(plan_of(path.as_uri(), path.stat().st_size))


def test_a_scheme_that_nothing_knows_is_named_with_its_file():
    with pytest.raises(ReadFailed, match=r"file nowhere://bucket/x\.parquet cannot be read: .*nowhere"):
        read(plan_of("nowhere://bucket/x.parquet", 8))


def test_errors_of_packages_of_fsspec_name_the_file():
    class Refused(Exception):
        pass

    class Refusing(MemoryFileSystem):
        protocol = "refusing"
        cachable = False

        def isfile(self, path):
            return True

        def _open(self, path, *args, **kwargs):
            raise Refused("no such account")

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with pytest.raises(ReadFailed, match=r"file refusing://bucket/x\.parquet cannot be read: .*no such account"):
        read(plan_of("refusing://bucket/x.parquet", 8))


@pytest.mark.parametrize("path", ["s3://key:secret@bucket/in", "s3://bucket/in?secret_key=secret"])
def test_a_path_with_credentials_is_refused_before_spark_sees_it(path):
    with pytest.raises(PlanError, match="read_parquet: the path has credentials") as caught:
        plan_scan(None, ["/data/in", path])
    assert "secret@" not in str(caught.value) and "secret_key" not in str(caught.value)
