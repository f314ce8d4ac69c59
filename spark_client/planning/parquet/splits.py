"""Divides files among tasks, as Spark divides them: large files are cut, small ones share a task."""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_client.executor.parquet.scan import Split

__all__ = ["SplitSizes", "tasks_of"]


@dataclass(frozen=True)
class SplitSizes:
    """Spark's `spark.sql.files.maxPartitionBytes`, `spark.sql.files.openCostInBytes` and the wanted number of tasks."""

    most: int
    open_cost: int
    parallelism: int


def tasks_of(sizes: Sequence[int], settings: SplitSizes) -> tuple[tuple[Split, ...], ...]:
    """The splits of each task, for files of these sizes."""
    total = sum(sizes) + len(sizes) * settings.open_cost
    most = max(min(settings.most, max(settings.open_cost, total // settings.parallelism)), 1)
    splits = [
        Split(file, start, min(start + most, size)) for file, size in enumerate(sizes) for start in range(0, size, most)
    ]
    tasks: list[list[Split]] = []
    room = 0
    for split in sorted(splits, key=lambda split: split.start - split.end):
        length = split.end - split.start
        if not tasks or length > room:
            tasks.append([])
            room = most
        tasks[-1].append(split)
        room -= length + settings.open_cost
    return tuple(tuple(task) for task in tasks)
