"""Identifiers: how Spark compares and quotes the names of columns, tables and fields.

Names of functions are not among them, which Spark compares without regard to case whatever the session says, nor
those of a WINDOW clause, which it compares as they are written.
"""

import re
from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.settings import read_once

__all__ = [
    "Identifiers",
    "are_plain",
    "column_named",
    "error_column",
    "hidden",
    "identifiers_of",
    "quoted",
    "texts_of",
]

_CASE = "spark.sql.caseSensitive"
_HIDDEN = "__remote_udf_"
_PLAIN = re.compile(r"\w+")


class Identifiers:
    """The rule of one Spark session."""

    def __init__(self, *, case_sensitive: bool) -> None:
        self.case_sensitive = case_sensitive

    def key(self, name: str) -> str:
        """Two names are one to Spark if their keys are equal. That of a name in lower case is the name."""
        # Not casefold, to which "straße" and "strasse" are one.
        return name if self.case_sensitive else name.lower()

    def keys(self, names: Iterable[str]) -> set[str]:
        """The keys of several names."""
        return set(map(self.key, names))

    def same(self, one: str, other: str) -> bool:
        """Whether two names are one to Spark."""
        return self.key(one) == self.key(other)

    def repeated(self, names: Sequence[str]) -> list[str]:
        """The keys that several of the names have, sorted."""
        keys = [self.key(name) for name in names]
        return sorted({key for key in keys if keys.count(key) > 1})


def identifiers_of(of: SparkSession | DataFrame) -> Identifiers:
    """The rule of a session, or of the session that a frame belongs to, as it is set now."""
    spark = of.sparkSession if isinstance(of, DataFrame) else of
    return Identifiers(case_sensitive=read_once(spark, _is_case_sensitive))


def _is_case_sensitive(spark: SparkSession) -> bool:
    return str(spark.conf.get(_CASE, "false")).lower() == "true"


def quoted(name: str) -> str:
    """The name in backticks, as Spark reads it wherever it takes the text of a column."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> Column:
    """The column of exactly that name, dots and all."""
    return F.col(quoted(name))


def texts_of(name: str) -> list[str]:
    """The texts that Spark reads as the column of that name."""
    return [name, quoted(name)] if are_plain([name]) else [quoted(name)]


def are_plain(names: Iterable[str]) -> bool:
    """Whether each name, without backticks, is the text of the column of that name: mapInArrow uses such texts."""
    return all(_PLAIN.fullmatch(name) for name in names)


def hidden(what: object) -> str:
    """The name of a column that users do not see: `what` says which, a word or a number."""
    return f"{_HIDDEN}{what}"


def error_column(name: str) -> str:
    """The name of the column with the errors of the column `name`, of a call with on-error `column`."""
    return f"{name}_error"
