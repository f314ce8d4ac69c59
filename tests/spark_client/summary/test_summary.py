"""Summaries from reports of tasks, without Spark; tests/spark/session/test_summary.py has Spark's."""

import contextlib
import dataclasses
import io
import pickle
import threading
from types import SimpleNamespace

import pytest
from pyarrow import fs
from pyspark import worker_util
from pyspark.accumulators import Accumulator, _accumulatorRegistry
from pyspark.serializers import CPickleSerializer

import udf_server as udf
from spark_client.base.config import ClientConfig
from spark_client.base.errors import SummaryUnavailable
from spark_client.base.statistics import Statistics, TaskReport
from spark_client.executor.files import file_system
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from spark_client.summary.collector import (
    Collector,
    FiledReports,
    _Accumulated,
    _ReportsParam,
    collecting,
    read_report,
    require_reports,
)
from spark_client.summary.job_summary import JobSummary
from spark_client.summary.progress import Progress
from tests.spark_client.bucket import bucket_of
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until


class Tracker:
    def __init__(self):
        self.stages = {}

    def getActiveStageIds(self):
        return list(self.stages)

    def getStageInfo(self, stage):
        done, tasks = self.stages[stage]
        return SimpleNamespace(numCompletedTasks=done, numTasks=tasks) if tasks else None


def report(*, rows=10, stage=1, partition=0, attempt=1, micro_batch=-1, function="f@1", failed=0, operation="o"):
    statistics = Statistics(streams=1, rows=rows, ok=rows - failed, failed=failed, task_seconds=1.0)
    statistics.answered(0.5)
    return TaskReport(function, operation, "null", stage, partition, attempt, micro_batch, statistics)


@pytest.fixture
def collector():
    return Collector()


@pytest.fixture
def summary(collector):
    return JobSummary(None, SimpleNamespace(statusTracker=Tracker), collector)


def test_reports_count_while_the_block_runs(summary, collector):
    collector.take([report()])
    with summary:
        collector.take([report(), report(partition=1)])
    collector.take([report(partition=2)])
    assert summary.total()[0] == 2
    assert summary.total()[1].rows == 20


def test_a_summary_outside_a_block_says_how_it_counts(summary, collector):
    collector.take([report()])
    told = "counts what runs inside `with remote.summary() as summary:`"
    assert told in repr(summary) and told in summary.text() and "with remote.summary()" in summary._repr_html_()
    with summary:
        collector.take([report()])
    assert "10 rows in 1 tasks" in repr(summary) and "10 rows" in summary.text()


def test_a_summary_says_what_the_server_has_lowered(serve):
    @udf.scalar(max_attempts=2)
    async def plus_one(x: int) -> int:
        return x + 1

    server = serve(plus_one, functions={"*": {"at-most.timeout": "5 s", "at-most.max-attempts": "4"}})
    spec = list_functions(ClientConfig(server.target)).find("plus_one")
    assert spec.options == {"max-attempts": "2", "at-most.timeout": "5 s", "at-most.max-attempts": "4"}
    collector = Collector()
    config = ClientConfig(server.target, reporter=SimpleNamespace(report=lambda made: collector.take([made])))
    with JobSummary(None, None, collector) as summary:
        call = call_of(SimpleNamespace(spec=spec), timeout="1 min", max_attempts="3")
        assert call.timeout == 5.0
        with contextlib.closing(stream_of(dataclasses.replace(call, config=config), transport_for(config))) as stream:
            stream.submit(chunk_of([1, 2]))
            everything(stream)
            stream.report(0.0)
    assert "lowered by the server: timeout to 5 s\n" in summary.text()


def test_two_summaries_count_each_for_itself(collector):
    context = SimpleNamespace(statusTracker=Tracker)
    with JobSummary(None, context, collector) as outer:
        collector.take([report()])
        with JobSummary(None, context, collector) as inner:
            collector.take([report(partition=1)])
    collector.take([report(partition=2)])  # neither is told any more
    assert (outer.total()[1].rows, inner.total()[1].rows) == (20, 10)


def test_of_a_task_that_ran_twice_the_last_attempt_counts(summary, collector):
    with summary:
        collector.take([report(rows=3, attempt=7), report(rows=5, attempt=9), report(rows=4, attempt=8)])
    assert (summary.total()[0], summary.total()[1].rows) == (1, 5)


def test_an_operator_that_runs_twice_in_one_task_counts_twice(summary, collector):
    with summary:
        collector.take([report(rows=3), report(rows=4)])
    assert (summary.total()[0], summary.total()[1].rows) == (1, 7)


def test_a_row_per_function_and_stage_and_one_for_all_micro_batches(summary, collector):
    with summary:
        collector.take([report(stage=2), report(stage=1), report(stage=1, function="g@1")])
        collector.take([report(stage=7, micro_batch=0), report(stage=8, micro_batch=1)])
    assert [(row.function, row.stage, row.tasks) for row in summary.rows()] == [
        ("f@1", None, 2),
        ("f@1", 1, 1),
        ("g@1", 1, 1),
        ("f@1", 2, 1),
    ]


def test_old_tasks_are_folded_and_still_count(summary, collector, monkeypatch):
    monkeypatch.setattr("spark_client.summary.job_summary.TASKS_KEPT", 5)
    with summary:
        for partition in range(12):
            collector.take([report(partition=partition)])
    assert (summary.total()[0], summary.total()[1].rows) == (12, 120)
    assert summary.total()[1].latencies == {report().statistics.latencies.copy().popitem()[0]: 12}
    # Another attempt takes the place of one of the five latest tasks, and counts beside one of the others.
    for partition, tasks in ((7, 12), (6, 13)):
        with summary:
            collector.take([report(partition=partition, attempt=2)])
        assert summary.total()[0] == tasks


def test_it_reads_as_text_and_html(summary, collector):
    with summary:
        collector.take([report(rows=12_345, failed=5, function="<b>@1")])
    lines = summary.text().splitlines()
    assert lines[0] == "<b>@1, stage 1: 12,345 rows: 12,340 ok, 5 failed (null), 0 skipped"
    assert lines[3].startswith("  a batch took 531 ms (p50), 531 ms (p99): 0% function")
    page = summary._repr_html_()
    assert "&lt;b&gt;@1" in page and "<b>" not in page
    assert "12,345" in page
    assert "12,345 rows in 1 tasks, 5 failed" in repr(summary)


def test_without_calls_it_says_so(summary):
    with summary:
        pass
    assert summary.text().startswith("no remote call has ended in 0.")


def test_the_accumulator_travels_empty_and_comes_back_as_reports(monkeypatch):
    """Does what Spark does: the plan is pickled, a task adds, the driver's accumulator takes the update."""
    collector, taken = Collector(), []
    collector.open(SimpleNamespace(take=taken.append))
    accumulator = Accumulator(-7, collector, _ReportsParam())
    plan = pickle.dumps(_Accumulated(accumulator))
    del _accumulatorRegistry[-7]  # another process
    in_task = pickle.loads(plan)
    in_task.report(report())
    in_task.report(report(partition=1))
    sent = io.BytesIO()
    monkeypatch.setattr(worker_util, "_accumulatorRegistry", {-7: _accumulatorRegistry.pop(-7)})
    worker_util.send_accumulator_updates(sent)
    sent.seek(4)  # after their number
    ((_, update),) = CPickleSerializer().load_stream(sent)
    accumulator += update
    assert [each.partition for each in taken] == [0, 1]
    assert accumulator.value is collector


def test_spark_connect_without_a_directory_has_no_summary_and_says_what_to_do():
    reporter, _ = collecting(object(), None)
    with pytest.raises(SummaryUnavailable, match="summary_directory=PATH"):
        require_reports(reporter)


def test_reports_come_through_files_as_they_were(tmp_path):
    reporter = pickle.loads(pickle.dumps(FiledReports(str(tmp_path / "new"))))
    sent = [report(partition=0), report(partition=1, failed=3, micro_batch=7)]
    for each in sent:
        reporter.report(each)
    files = list((tmp_path / "new").iterdir())
    assert len(files) == 2 and all(file.suffix == ".json" for file in files)
    found = [read_report(file.read_text()) for file in files]
    assert sorted((each for _, each in found), key=lambda each: each.partition) == sent
    assert {f"{identity}.json" for identity, _ in found} == {file.name for file in files}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_reports_are_written_to_a_bucket_by_each_of_its_names(scheme):
    with bucket_of(scheme) as bucket:
        FiledReports(f"{bucket}/summaries/1").report(report(rows=7))
        system, base = file_system(f"{bucket}/summaries/1")
        (file,) = system.get_file_info(fs.FileSelector(base))
        with system.open_input_file(file.path) as source:
            assert read_report(source.read().decode())[1] == report(rows=7)


def test_a_directory_that_cannot_be_written_costs_the_report_and_not_the_task(tmp_path, caplog):
    (tmp_path / "taken").write_text("a file")
    FiledReports(str(tmp_path / "taken" / "below")).report(report())
    assert "the statistics of a task are lost" in caplog.text
    FiledReports("nosuch://bucket/x").report(report())
    assert "nosuch" in caplog.text


def test_fetched_reports_go_to_the_summary_that_was_open_when_their_tasks_ended():
    waiting = [report(partition=0)]

    def fetch():
        new, waiting[:] = list(waiting), []
        return new

    collector = Collector(fetch)
    first, second = (JobSummary(None, None, collector) for _ in range(2))
    with first:
        waiting.append(report(partition=1))
        assert first.total()[0] == 1
        waiting.append(report(partition=2))
    waiting.append(report(partition=3))
    with second:
        waiting.append(report(partition=4))
    waiting.append(report(partition=5))
    assert (first.total()[0], second.total()[0]) == (2, 1)


def test_a_job_s_own_error_is_not_hidden_by_reports_that_cannot_be_read():
    answers = iter([[]])

    def fetch():
        for answer in answers:
            return answer
        raise OSError("no reports")

    with pytest.raises(ZeroDivisionError), JobSummary(None, None, Collector(fetch)):
        raise ZeroDivisionError
    answers = iter([[]])
    with pytest.raises(OSError, match="no reports"), JobSummary(None, None, Collector(fetch)):
        pass


def test_a_line_of_progress_has_rates_and_stages():
    now = [100.0]
    statistics = [Statistics(rows=1_000, failed=2, retries=3)]
    tracker = Tracker()
    tracker.stages = {4: (12, 200), 5: (0, 0)}
    out = io.StringIO()
    progress = Progress(lambda: (7, statistics[0]), tracker, 60, out, lambda: now[0])
    now[0] += 2.0
    assert progress.line() == (
        "2 s, 1,000 rows (500 rows/s), 2 failed, 3 retries, stage 4: 12 of 200 tasks, about 31 s left"
    )
    progress.start()
    progress.stop()
    progress.stop()
    assert out.getvalue().count("remote-udf: ") == 1


def test_progress_prints_on_and_on():
    out = io.StringIO()
    progress = Progress(lambda: (0, Statistics()), Tracker(), 0.001, out)
    progress.start()
    wait_until(lambda: out.getvalue().count("\n") >= 3)
    progress.stop()


class Gone(Tracker):
    """The tracker of a Spark whose JVM has ended."""

    def getActiveStageIds(self):
        raise ConnectionRefusedError("no JVM")


def test_a_job_s_own_error_is_not_hidden_by_a_line_of_progress(collector, caplog):
    summary = JobSummary(None, SimpleNamespace(statusTracker=Gone), collector, progress=60)
    with pytest.raises(LookupError, match="of the job"), summary:
        raise LookupError("of the job")
    assert "a line of progress cannot be shown: no JVM" in caplog.text
    collector.take([report()])
    assert summary.total()[0] == 0


def test_progress_goes_on_after_a_line_that_fails():
    out, tracker = io.StringIO(), Gone()
    progress = Progress(lambda: (0, Statistics()), tracker, 0.001, out)
    tracked, seen = tracker.getActiveStageIds, threading.Event()

    def fails_once():
        if not seen.is_set():
            seen.set()
            return tracked()
        return []

    tracker.getActiveStageIds = fails_once
    progress.start()
    wait_until(lambda: "remote-udf:" in out.getvalue())
    progress.stop()


def test_a_summary_whose_progress_does_not_start_counts_nothing(collector):
    def refuses():
        raise OSError("no terminal")

    summary = JobSummary(
        None, SimpleNamespace(statusTracker=Tracker), collector, progress=60, live=SimpleNamespace(start=refuses)
    )
    with pytest.raises(OSError, match="no terminal"), summary:
        pass
    collector.take([report()])
    assert summary.total()[0] == 0


def test_progress_needs_seconds():
    with pytest.raises(ValueError, match="above 0"):
        Progress(lambda: (0, Statistics()), Tracker(), -1.0)
