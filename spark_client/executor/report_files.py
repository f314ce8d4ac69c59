"""FiledReports writes statistics of tasks to files in a directory, for drivers that accumulators do not reach."""

import dataclasses
import json
import logging
import posixpath
import uuid

import pyarrow as pa
from pyarrow import fs

from spark_client.base.statistics import Statistics, TaskReport
from spark_client.executor.files import file_system

__all__ = ["FiledReports", "read_report"]

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class FiledReports:
    """Writes a small file of JSON per report into the directory `path`. Travels with the plan."""

    path: str

    def report(self, report: TaskReport) -> None:
        """The file is there in full or not at all. Failing to write is logged: it must not cost the task."""
        identity = uuid.uuid4().hex
        text = json.dumps({"id": identity, **dataclasses.asdict(report)})
        try:
            system, base = file_system(self.path)
            system.create_dir(base, recursive=True)
            self._write(system, base, identity, text.encode())
        except (OSError, pa.ArrowException) as error:
            log.warning("the statistics of a task are lost, because %s cannot be written: %s", self.path, error)

    @staticmethod
    def _write(system: fs.FileSystem, base: str, identity: str, content: bytes) -> None:
        # Spark ignores files whose names start with an underscore.
        temporary = posixpath.join(base, f"_{identity}")
        with system.open_output_stream(temporary) as sink:
            sink.write(content)
        system.move(temporary, posixpath.join(base, f"{identity}.json"))


def read_report(text: str) -> tuple[str, TaskReport]:
    """Read a report that `FiledReports` has written. Returns its unique identity and the report."""
    values = json.loads(text)
    identity, statistics = values.pop("id"), values.pop("statistics")
    latencies = {int(bucket): count for bucket, count in statistics.pop("latencies").items()}
    return identity, TaskReport(**values, statistics=Statistics(**statistics, latencies=latencies))
