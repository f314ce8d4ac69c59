"""Reads the footers of Parquet files: the row groups of a split, and the calendar in which a file was written."""

import itertools
from dataclasses import dataclass

import pyarrow.parquet as pq

__all__ = ["Calendars", "columns_in_old_calendar", "row_groups"]


_VERSION = b"org.apache.spark.version"
_LEGACY = b"org.apache.spark.legacyDateTime"
_LEGACY_INT96 = b"org.apache.spark.legacyINT96"


@dataclass(frozen=True)
class Calendars:
    """Whether Spark reads files of unknown origin as they are: `datetimeRebaseModeInRead` is CORRECTED.

    `int96` says the same of times in the old form INT96.
    """

    datetimes: bool
    int96: bool


def columns_in_old_calendar(file: pq.ParquetFile, calendars: Calendars) -> set[str]:
    """The top-level columns whose dates and times Spark would convert from the hybrid calendar.

    Spark marks files that it writes in that calendar; Spark 2 always did so without a mark.
    """
    metadata = file.metadata.metadata or {}
    version = metadata.get(_VERSION)
    if version is None:
        datetimes, int96 = not calendars.datetimes, not calendars.int96
    else:
        # Spark compares the versions as texts, too.
        datetimes = version < b"3.0.0" or _LEGACY in metadata
        int96 = version < b"3.1.0" or _LEGACY_INT96 in metadata
    if not datetimes and not int96:
        return set()
    leaves = [file.schema.column(index) for index in range(len(file.schema))]
    return {leaf.path.partition(".")[0] for leaf in leaves if (int96 if leaf.physical_type == "INT96" else datetimes)}


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
