"""Variables of a text, `${name}`, which Spark replaces in any text before it parses it."""

import re
from dataclasses import replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_client.sql.text.parsing import Text

__all__ = ["substituted"]

_VARIABLE = re.compile(r"\$\{(?:\w+:)?[^\s}']+\}")


def substituted(spark: SparkSession, text: Text) -> Text:
    """The text with the values that Spark has for its variables: settings, and the environment of the driver's JVM.

    A variable that has none stays, and so do all if a value has a quote.
    """
    found = list(dict.fromkeys(_VARIABLE.findall(text.sql)))
    if not found or text.fields:
        return text
    raw = "" if text.settings.escaped else "r"
    try:
        row = spark.sql("SELECT " + ", ".join(f"{raw}'{each}'" for each in found)).first()
    except PySparkException:
        return text
    if row is None or len(row) != len(found):
        return text
    values = dict(zip(found, row, strict=True))
    return replace(text, sql=_VARIABLE.sub(lambda each: str(values[each[0]]), text.sql))
