"""Has each table of a statement set get the rows of a micro-batch once, also if the micro-batch runs again.

If a query ends in the middle of a micro-batch, its restart repeats that micro-batch, although some statements have
committed their rows, or a part of their files. A note of what was written could be missing, or be there without the
rows. So the rows themselves tell where they come from: the names of files in a table of files contain the query and the
micro-batch, and a micro-batch that may be a repetition first deletes the files with its names. A Delta table compares
both with its log. What other tables hold cannot be told apart, so a warning is issued.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from sqlglot import exp

from spark_client.executor.files import delete_file, located
from spark_client.sql.rows.shared_operators import readable
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import written

__all__ = ["InsertsRepeat", "SetInsert", "inserting", "statement_of"]

TARGET = "remote_udf_insert_target"
"""The name in the text of a statement in place of its table, until the options that follow the table are known."""
_FILES = {"parquet", "orc", "json", "csv", "text", "avro", "xml"}
"""The formats of tables whose files Spark names itself."""
_BASE_NAME = "mapreduce.output.basename"
"""The option with the beginning of the names of files."""


class InsertsRepeat(UserWarning):
    """A statement set on a stream may insert the rows of a micro-batch into a table twice."""


@dataclass(frozen=True)
class SetInsert:
    """An INSERT into a table. Its text has TARGET in place of the name of the table, unless it overwrites the table.

    `location` is that of a table of files; `delta` tells that the table is one of Delta Lake.
    """

    text: str
    table: str = ""
    location: str | None = None
    delta: bool = False

    def inserting(self, query: str, micro_batch: int, number: int) -> str:
        """The text for a micro-batch of a query; `number` is that of the statement among those of its table."""
        if self.location is not None:
            options = {_BASE_NAME: f"{_prefix(query, micro_batch)}{number}"}
        elif self.delta:
            options = {"txnAppId": f"{query}-{number}", "txnVersion": str(micro_batch)}
        else:
            return self.text.replace(TARGET, self._name)
        told = ", ".join(f"`{name}` = '{value}'" for name, value in options.items())
        return self.text.replace(TARGET, f"{self._name} WITH ({told})")

    @property
    def _name(self) -> str:
        # Braces of the text are doubled, because it has fields.
        return self.table.replace("{", "{{").replace("}", "}}")

    def delete_earlier(self, query: str, micro_batch: int) -> None:
        """Delete what an earlier run of the micro-batch has left in the table, by any statement. Raises OSError."""
        if self.location is None:
            return
        system, base = located(self.location)
        beginning = _prefix(query, micro_batch)
        for file in system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True)):
            if file.base_name.startswith(beginning):
                delete_file(system, file.path)


def statement_of(spark: SparkSession, insert: Node) -> SetInsert:
    """Read the table of an INSERT. Warns with InsertsRepeat if a repeated micro-batch would be inserted twice."""
    target = _target_of(insert)
    if insert.args.get("overwrite") or not isinstance(target, exp.Table):
        return SetInsert(written(insert))
    name, changed = written(target), insert.copy()
    _target_of(changed).replace(exp.Table(this=exp.to_identifier(TARGET)))
    marked = written(changed)
    told = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    provider, location = str(told.get("Provider", "")).lower(), told.get("Location")
    if provider == "delta":
        return SetInsert(marked, name, delta=True)
    reason = f"it is a table of {provider or 'another kind'}, neither of files nor of Delta Lake"
    if provider in _FILES and location:
        try:
            system, base = located(location)
            system.get_file_info(base)
            return SetInsert(marked, name, location)
        except Exception as error:
            reason = f"its files cannot be listed: {error}"
    warnings.warn(
        f"{name}: if the query fails in the middle of a micro-batch, its restart inserts the rows of that micro-batch "
        f"again, because {reason}. Insert into a table of files or of Delta Lake, or remove repeated rows where the "
        "table is read",
        InsertsRepeat,
        stacklevel=2,
    )
    return SetInsert(marked, name)


def _target_of(insert: Node) -> Node:
    target: Node = insert.this.this if isinstance(insert.this, exp.Schema) else insert.this
    return target


def inserting(statements: Sequence[SetInsert], checkpoint: str) -> Callable[[DataFrame, int], None]:
    """The function that inserts each micro-batch. `checkpoint` is the folder of the query, which has its id."""
    started: list[str] = []

    def insert(rows: DataFrame, micro_batch: int) -> None:
        session = rows.sparkSession
        kept = rows.persist()
        try:
            # Only the first micro-batch of a run may be a repetition.
            repeated = not started
            query = started[0] if started else _id_of(session, checkpoint)
            for statement in statements if repeated else ():
                statement.delete_earlier(query, micro_batch)
            for place, statement in enumerate(statements):
                number = sum(other.table == statement.table for other in statements[:place])
                session.sql(statement.inserting(query, micro_batch, number), rows=readable(kept))
            started[:] = [query]
        finally:
            kept.unpersist()

    return insert


def _id_of(session: SparkSession, checkpoint: str) -> str:
    """The id of a query, which it keeps when it is restarted. A new checkpoint has another one."""
    (line,) = session.read.text(f"{checkpoint}/metadata").collect()
    return str(json.loads(line.value)["id"])


def _prefix(query: str, micro_batch: int) -> str:
    return f"part-{query}-{micro_batch}-"
