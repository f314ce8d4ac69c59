"""A file with a damaged footer is an error with its name, and does not end the process."""

import subprocess
import sys

import pytest

PROGRAM = """
import struct, sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_client.base.errors import ReadFailed
from spark_client.parquet.conform import Calendars
from spark_client.parquet.scan import ScanColumn, ScanPlan, Split, read_splits

path = Path(sys.argv[1])
rows = pa.table({"a": list(range(20)), "t": ["x", None] * 10})
pq.write_table(rows, path, row_group_size=10)
whole = path.read_bytes()
size, begin = len(whole), len(whole) - 8 - struct.unpack("<I", whole[-8:-4])[0]
columns = tuple(ScanColumn(field.name, field.type) for field in rows.schema)
read = failed = 0
for place in range(begin, size):
    for value in (0, whole[place] ^ 1, whole[place] ^ 8, 255):
        print(place, value, flush=True)
        path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        files = pa.table({"path": [path.as_uri()], "size": [size], "time": [path.stat().st_mtime_ns // 1_000_000]})
        split, calendars = Split(0, 0, size), Calendars(True, True)
        plan = ScanPlan(files, ((split,),), columns, (0, 1), calendars, False)
        try:
            read += sum(batch.num_rows > 0 for batch in read_splits(plan, iter([pa.record_batch({"n": [0]})])))
        except ReadFailed as error:
            failed += 1
            assert path.as_uri() in str(error)
assert read and failed > 100, (read, failed)
print("done")
"""


@pytest.mark.slow
def test_every_byte_of_a_footer_may_be_wrong(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    last = "".join(done.stdout.splitlines(keepends=True)[-1:])
    assert (done.returncode, last) == (0, "done\n"), done.stderr[-1000:]
