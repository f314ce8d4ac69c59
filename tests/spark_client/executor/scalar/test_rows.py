"""The code of Spark's Python worker, without Spark: whole rows and single columns under every policy."""

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from remote_udf.options import OnError
from spark_client.base.errors import DeadLetterFailed, ErrorBudgetExceeded, FunctionFailed
from spark_client.executor.engine.pieces import PIECE_BYTES
from spark_client.executor.engine.row_engine import PlannedCall
from spark_client.executor.scalar import rows as rows_module
from spark_client.executor.scalar.column import FusedPlan, evaluate_fused, evaluate_scalar, result_type
from spark_client.executor.scalar.rows import ColumnSource, OutputColumn, RowPlan, map_rows
from spark_client.testing import local_transport
from tests.spark_client.scripted import call_of

PLUGIN = """
import udf_server as udf

@udf.scalar
def positive(x: int) -> int:
    if x < 0:
        raise ValueError(f"{x} is negative")
    return x

@udf.scalar
def even(x: int) -> int:
    if x % 2:
        raise ValueError(f"{x} is odd")
    return x

@udf.scalar
def one() -> int:
    return 1

@udf.scalar
def wide(x: int) -> str:
    if x % 10 == 7:
        raise ValueError(f"{x} ends in 7")
    return f"{x} " * (1 << 19)
"""


class Named:
    def __init__(self, spec):
        self.spec = spec


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("plugin") / "some_udfs.py"
    path.write_text(PLUGIN)
    yield f"local:{path}"
    local_transport(str(path)).close()


@pytest.fixture
def call(target):
    from remote_udf.functions import FunctionSpec

    functions = local_transport(target.removeprefix("local:")).list_functions()[0].functions
    specs = {spec.name: Named(FunctionSpec.from_proto(spec)) for spec in functions}
    return lambda name, on_error="fail", arguments=1, **policy: call_of(
        specs[name], target, arguments=arguments, policy={"on_error": OnError(on_error), **policy}
    )


X = OutputColumn("x", ColumnSource.INPUT, 0)


def plan_of(*calls, output=None, ordered=True):
    columns = [OutputColumn(f"v{index}", ColumnSource.VALUE, index) for index in range(len(calls))]
    planned = tuple(PlannedCall(call, (0,)) for call in calls)
    return RowPlan(planned, (X, *(columns if output is None else output)), ("x",), ordered)


def mapped(plan, *batches):
    given = (pa.record_batch({"x": pa.array(batch, pa.int64())}) for batch in batches)
    return [row for batch in map_rows(plan, given) for row in batch.to_pylist()]


def letters_in(path):
    return ds.dataset(str(path), format="parquet").to_table().to_pylist()


def test_fail_ends_the_task_at_the_first_failed_row(call):
    with pytest.raises(FunctionFailed, match=r"positive\(x=-1\) of positive@1 failed: .*ValueError: -1 is negative"):
        mapped(plan_of(call("positive")), [3, -1, -2])


def test_null_leaves_null(call):
    assert mapped(plan_of(call("positive", "null")), [3, -1]) == [{"x": 3, "v0": 3}, {"x": -1, "v0": None}]


def test_an_error_column_stands_beside_the_value(call):
    output = [OutputColumn("v", ColumnSource.VALUE, 0), OutputColumn("v_error", ColumnSource.ERROR, 0)]
    ok, failed = mapped(plan_of(call("positive", "column"), output=output), [3, -1])
    assert ok == {"x": 3, "v": 3, "v_error": None}
    assert (failed["v"], failed["v_error"]["code"]) == (None, "FUNCTION_ERROR")


@pytest.mark.slow
def test_rows_with_large_values_leave_in_several_batches(call, monkeypatch):
    monkeypatch.setattr(rows_module, "WHOLE_BYTES", 1 << 20)
    output = [OutputColumn("v", ColumnSource.VALUE, 0), OutputColumn("error", ColumnSource.ERROR, 0)]
    output.append(OutputColumn("p", ColumnSource.VALUE, 1))
    plan = plan_of(call("wide", "column"), call("positive"), output=output)
    batches = list(map_rows(plan, iter([pa.record_batch({"x": pa.array(range(60), pa.int64())})])))
    assert max(batch.nbytes for batch in batches) < 2 * PIECE_BYTES
    found = pa.Table.from_batches(batches)
    assert found.column("x").to_pylist() == found.column("p").to_pylist() == list(range(60))
    assert found.column("v").to_pylist() == [None if x % 10 == 7 else f"{x} " * (1 << 19) for x in range(60)]
    errors = found.column("error").to_pylist()
    assert [x for x, error in enumerate(errors) if error is not None] == list(range(7, 60, 10))


@pytest.mark.parametrize("ordered", [True, False])
def test_dead_letters_leave_the_result_and_stand_in_the_file(call, tmp_path, ordered):
    plan = plan_of(call("positive", "dead-letter", dead_letter=str(tmp_path)), ordered=ordered)
    assert mapped(plan, [3, -1], [-2, 4]) == [{"x": 3, "v0": 3}, {"x": 4, "v0": 4}]
    found = letters_in(tmp_path)
    assert [(letter["x"], letter["_function"]) for letter in found] == [(-1, "positive@1"), (-2, "positive@1")]


def test_a_row_that_fails_twice_is_one_letter_of_the_first_call(call, tmp_path):
    calls = [call(name, "dead-letter", dead_letter=str(tmp_path)) for name in ("positive", "even")]
    assert mapped(plan_of(*calls), [2, -1, 3]) == [{"x": 2, "v0": 2, "v1": 2}]
    assert [(letter["x"], letter["_function"]) for letter in letters_in(tmp_path)] == [
        (-1, "positive@1"),
        (3, "even@1"),
    ]


def test_calls_with_directories_of_their_own_write_there(call, tmp_path):
    one = call("positive", "dead-letter", dead_letter=str(tmp_path / "one"))
    other = call("even", "dead-letter", dead_letter=str(tmp_path / "other"))
    assert mapped(plan_of(one, other), [2, -1, 3]) == [{"x": 2, "v0": 2, "v1": 2}]
    assert [letter["x"] for letter in letters_in(tmp_path / "one")] == [-1]
    assert [letter["x"] for letter in letters_in(tmp_path / "other")] == [3]


def test_policies_of_several_calls_do_not_mix(call, tmp_path):
    kept = call("even", "null")
    letters = call("positive", "dead-letter", dead_letter=str(tmp_path))
    assert mapped(plan_of(kept, letters), [2, -1, 3]) == [{"x": 2, "v0": 2, "v1": 2}, {"x": 3, "v0": None, "v1": 3}]


def test_a_task_that_exceeds_its_budget_leaves_no_letters(call, tmp_path):
    plan = plan_of(call("positive", "dead-letter", dead_letter=str(tmp_path), max_errors=2))
    with pytest.raises(ErrorBudgetExceeded, match="3 of 4 rows of this task failed, more than max-errors 2"):
        mapped(plan, [1, -1, -2, -3])
    assert list(tmp_path.iterdir()) == []


def test_a_result_that_nobody_reads_to_its_end_leaves_no_letters(call, tmp_path):
    plan = plan_of(call("positive", "dead-letter", dead_letter=str(tmp_path)))
    given = (pa.record_batch({"x": pa.array(batch, pa.int64())}) for batch in ([1, -1], [2], [3]))
    result = map_rows(plan, given)
    next(result)
    result.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_is_an_error_before_any_call(call):
    plan = plan_of(call("positive", "dead-letter", dead_letter="dbfs:/y"))
    with pytest.raises(DeadLetterFailed, match="option dead-letter: cannot write to 'dbfs:/y'"):
        mapped(plan, [1])


def evaluated(call, *arrays):
    return [value for array in evaluate_scalar(call, iter(arrays)) for value in array.to_pylist()]


def test_a_column_of_values_comes_back_in_order(call):
    assert evaluated(call("positive"), pa.array([1, 2]), pa.array([], pa.int64()), pa.array([3])) == [1, 2, 3]


@pytest.mark.parametrize("on_error", ["null", "column"])
@pytest.mark.parametrize("sizes", [[0], [3, 0, 2], [0, 1, 0, 0, 4, 0], [1] * 40, [2_000, 1, 2_000]])
def test_a_column_comes_back_in_the_batches_it_came_in(call, on_error, sizes):
    start, arrays = 0, []
    for size in sizes:
        arrays.append(pa.array(range(start, start + size), pa.int64()))
        start += size
    found = list(evaluate_scalar(call("even", on_error), iter(arrays)))
    assert [len(array) for array in found] == sizes
    assert len({array.type for array in found}) == 1
    values = [value for array in found for value in array.to_pylist()]
    values = [value["value"] for value in values] if on_error == "column" else values
    assert values == [None if number % 2 else number for number in range(start)]


def test_no_input_is_no_output(call):
    assert evaluated(call("positive")) == []


def test_arguments_that_only_spark_knows_are_counted_when_they_come(call):
    assert evaluated(call("positive", arguments=None), (pa.array([5]),)) == [5]
    assert evaluated(call("one", arguments=None), pa.array([None, None])) == [1, 1]


def test_with_on_error_column_values_are_structs(call):
    safe = call("positive", "column")
    ok, failed = evaluated(safe, pa.array([1, -1]))
    assert ok == {"value": 1, "error": None}
    assert (failed["value"], failed["error"]["message"]) == (None, "ValueError: -1 is negative")
    assert all(array.type == result_type(safe) for array in evaluate_scalar(safe, iter([pa.array([1])])))


@pytest.mark.parametrize("sizes", [[0], [3, 0, 2], [0, 1, 0, 0, 4, 0], [2_000, 1, 2_000]])
def test_fused_calls_come_back_as_structs_in_the_batches_they_came_in(call, sizes):
    even, positive = call("even", "null"), call("positive")
    plan = FusedPlan((PlannedCall(even, (0,)), PlannedCall(positive, (1,)), PlannedCall(even, (3,))), (2, 0))
    start, arrays = 0, []
    for size in sizes:
        numbers = range(start, start + size)
        arrays.append((pa.array(numbers, pa.int64()), pa.array([number // 2 for number in numbers], pa.int64())))
        start += size
    found = list(evaluate_fused(plan, iter(arrays)))
    assert [len(array) for array in found] == sizes
    assert all(array.type == plan.type for array in found)
    assert [value for array in found for value in array.to_pylist()] == [
        {"c0": number // 2 if number // 2 % 2 == 0 else None, "c1": number if number % 2 == 0 else None}
        for number in range(start)
    ]


def test_a_failed_call_among_fused_ones_names_its_function_and_argument(call):
    plan = FusedPlan((PlannedCall(call("positive"), (0,)), PlannedCall(call("even"), (1,))), (1,))
    with pytest.raises(FunctionFailed, match=r"even@1.*3 is odd"):
        list(evaluate_fused(plan, iter([pa.array([2, 3])])))


def test_a_share_of_failures_is_judged_at_the_end_of_the_column(call):
    with pytest.raises(ErrorBudgetExceeded, match="1 of 3 rows"):
        evaluated(call("positive", "null", max_error_rate=0.3), pa.array([1, -1, 2]))
