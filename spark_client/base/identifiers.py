"""Identifiers: how Spark compares and quotes the names of columns, tables and fields.

These rules do not apply to names of functions, whose case Spark always ignores, nor to names in a WINDOW clause,
whose case always counts.
"""

import difflib
import itertools
import re
from collections.abc import Collection, Iterable, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.calls import GENERATED
from spark_client.base.settings import all_settings, read_once

__all__ = [
    "Identifiers",
    "alike",
    "are_plain",
    "column_named",
    "error_column",
    "hidden",
    "identifiers_of",
    "is_hidden",
    "quoted",
    "texts_of",
    "unique_names",
]

NEAR = 0.7
"""How like a known name a name must be to be suggested, from 0 to 1."""
_CASE = "spark.sql.caseSensitive"
_HIDDEN = f"{GENERATED}udf_"
_PLAIN = re.compile(r"\w+")


def unique_names(names: Iterable[str]) -> list[str]:
    """The names for a struct, whose fields differ: a name that is there already gets the number of its position."""
    seen: list[str] = []
    for index, name in enumerate(names):
        unique = name
        while unique in seen:
            unique = f"{unique}_{index}"
        seen.append(unique)
    return seen


class Identifiers:
    """How one Spark session compares identifiers."""

    def __init__(self, *, case_sensitive: bool) -> None:
        self.case_sensitive = case_sensitive

    def key(self, name: str) -> str:
        """Spark treats two names as the same if their keys are equal. The key of a lower-case name is that name."""
        # Not casefold: it would make "straße" equal to "strasse".
        return name if self.case_sensitive else name.lower()

    def keys(self, names: Iterable[str]) -> set[str]:
        """The set of the keys of several names."""
        return set(map(self.key, names))

    def same(self, one: str, other: str) -> bool:
        """Whether Spark treats two names as the same."""
        return self.key(one) == self.key(other)

    def free(self, name: str, taken: Collection[str]) -> str:
        """The name, or if its key is taken, the name with the first number after it whose key is not: `label0`."""
        numbered = (f"{name}{number}" for number in itertools.count())
        return next(each for each in itertools.chain([name], numbered) if self.key(each) not in taken)

    def repeated(self, names: Sequence[str]) -> list[str]:
        """The keys that two or more of the names have, sorted."""
        keys = [self.key(name) for name in names]
        return sorted({key for key in keys if keys.count(key) > 1})


def identifiers_of(of: SparkSession | DataFrame) -> Identifiers:
    """The current rules of a session, or of the session that a frame belongs to."""
    spark = of.sparkSession if isinstance(of, DataFrame) else of
    return Identifiers(case_sensitive=read_once(spark, _is_case_sensitive))


def _is_case_sensitive(spark: SparkSession) -> bool:
    return read_once(spark, all_settings).get(_CASE, "false").lower() == "true"


def quoted(name: str) -> str:
    """The name in backticks, which Spark accepts wherever it accepts the text of a column."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> Column:
    """The column with exactly that name, which may contain dots."""
    return F.col(quoted(name))


def texts_of(name: str) -> list[str]:
    """The texts that Spark reads as the column with that name."""
    return [name, quoted(name)] if are_plain([name]) else [quoted(name)]


def are_plain(names: Iterable[str]) -> bool:
    """Whether Spark reads each name as a column without backticks; mapInArrow uses names in this way."""
    return all(_PLAIN.fullmatch(name) for name in names)


def hidden(what: object) -> str:
    """The name of an internal column that users do not see; `what` is a word or a number that distinguishes it."""
    return f"{_HIDDEN}{what}"


def is_hidden(name: str) -> bool:
    """Whether a name is that of an internal column."""
    return name.startswith(_HIDDEN)


def error_column(name: str) -> str:
    """The name of the column that holds the errors of the column `name`, for a call with on-error `column`."""
    return f"{name}_error"


def alike(name: str, known: Iterable[str]) -> list[str]:
    """The known names that may be meant by a name, for a message about it."""
    by_case = {each.casefold(): each for each in known}
    return [by_case[each] for each in difflib.get_close_matches(name.casefold(), by_case, cutoff=NEAR)]
