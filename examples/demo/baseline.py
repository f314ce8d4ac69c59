"""The usual PySpark way: a pandas_udf that waits for one answer after the other."""

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
from pyspark.sql import functions as F

__all__ = ["blocking_look_up"]


def blocking_look_up(base_url: str) -> Callable[..., Any]:
    """Returns a pandas_udf that looks paths up below the base URL: the answer as text, null for 404."""

    # It is a nested function, so that Spark pickles its code; the workers need not find this package.
    @F.pandas_udf("string")  # type: ignore[call-overload]
    def look_up(paths):  # type: ignore[no-untyped-def]
        # There is one connection per batch: the comparison is about waiting, not about connecting.
        connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=30)
        answers = []
        for path in paths:
            connection.request("GET", "/" + path)
            response = connection.getresponse()
            body = response.read().decode()
            if response.status not in (200, 404):
                raise RuntimeError(f"GET {path}: {response.status} {body}")
            answers.append(body if response.status == 200 else None)
        connection.close()
        return pd.Series(answers, dtype="object")

    return look_up
