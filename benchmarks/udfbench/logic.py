"""What the functions of UDFBench compute, in plain Python: both sides call this code."""

import itertools
import json
import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

__all__ = [
    "SCALARS", "clusters", "date_parts", "latest", "middle", "pairs_of", "pivoted", "read_file",
    "records_of_json", "records_of_xml", "summary", "top_five", "words_of",
]  # fmt: skip

_STOP = frozenset({"a", "and", "by", "for", "from", "in", "is", "of", "on", "or", "the", "this", "to", "with"})
_SUFFIXES = ("ations", "ation", "ings", "ing", "ies", "ed", "es", "s")
_RATES = {"EUR": 1.0, "USD": 0.91, "GBP": 1.17, "CHF": 1.04}


def clean_date(text: str | None) -> str | None:
    """A date in one of three forms, as YYYY-MM-DD."""
    parts = re.findall(r"\d+", text or "")
    if len(parts) < 3:
        return None
    year, month, day = parts[:3] if len(parts[0]) == 4 else reversed(parts[:3])
    return f"{int(year):04}-{int(month):02}-{int(day):02}"


def _part(text: str | None, index: int) -> int | None:
    cleaned = clean_date(text)
    return int(cleaned.split("-")[index]) if cleaned else None


def extract_year(text: str | None) -> int | None:
    return _part(text, 0)


def extract_month(text: str | None) -> int | None:
    return _part(text, 1)


def extract_day(text: str | None) -> int | None:
    return _part(text, 2)


def json_count(text: str | None) -> int | None:
    """The number of elements of a JSON list."""
    return len(json.loads(text)) if text else None


def lowerize(text: str | None) -> str | None:
    return text.lower() if text is not None else None


def remove_short_terms(text: str) -> str:
    """The names of a JSON list without words of fewer than three letters."""
    return json.dumps([" ".join(word for word in name.split() if len(word) > 2) for name in json.loads(text)])


def sort_values(text: str) -> str:
    """The names of a JSON list, each with its words in order."""
    return json.dumps([" ".join(sorted(name.split())) for name in json.loads(text)])


def sort_names(text: str) -> str:
    return json.dumps(sorted(json.loads(text)))


def keywords(text: str) -> str:
    """The words of a text."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def filter_stop_words(text: str) -> str:
    return " ".join(word for word in text.split() if word not in _STOP)


def stem(text: str) -> str:
    """The words without a few endings."""
    return " ".join(map(_stemmed, text.split()))


def _stemmed(word: str) -> str:
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) > len(suffix) + 3:
            return word.removesuffix(suffix)
    return word


def frequent_terms(text: str) -> str:
    """The ten most frequent words."""
    return " ".join(sorted(word for word, _ in Counter(text.split()).most_common(10)))


def jaccard(one: str, other: str) -> float:
    """The share of common words."""
    a, b = set(one.split()), set(other.split())
    return len(a & b) / max(len(a | b), 1)


def to_euro(amount: float | None, currency: str | None) -> float | None:
    return None if amount is None else amount * _RATES.get(currency or "EUR", 1.0)


def funder_of(text: str) -> str:
    """The first part of `funder::class::id`."""
    return text.split("::", maxsplit=1)[0]


def class_of(text: str) -> str:
    return text.split("::")[1]


def code_of(text: str) -> str:
    return text.split("::")[2]


def project_in(text: str | None) -> str | None:
    """The first number of six digits."""
    found = re.search(r"\b\d{6}\b", text or "")
    return found[0] if found else None


def field_value(text: str) -> str | None:
    """The first `value` of a JSON list of objects."""
    records = json.loads(text)
    return str(records[0]["value"]) if records else None


def add_noise(count: int) -> float:
    """The count with noise of the Laplace distribution, seeded by the count."""
    rng = random.Random(count)
    return count + rng.choice((-1, 1)) * -math.log(1 - rng.random())


SCALARS: dict[Callable[..., Any], tuple[str, str]] = {
    clean_date: ("text string", "string"), extract_year: ("text string", "int"), extract_month: ("text string", "int"),
    extract_day: ("text string", "int"), json_count: ("text string", "bigint"), lowerize: ("text string", "string"),
    remove_short_terms: ("text string", "string"), sort_values: ("text string", "string"),
    sort_names: ("text string", "string"), keywords: ("text string", "string"),
    filter_stop_words: ("text string", "string"), stem: ("text string", "string"),
    frequent_terms: ("text string", "string"), jaccard: ("one string, other string", "double"),
    to_euro: ("amount double, currency string", "double"), funder_of: ("text string", "string"),
    class_of: ("text string", "string"), code_of: ("text string", "string"), project_in: ("text string", "string"),
    field_value: ("text string", "string"), add_noise: ("count bigint", "double"),
}  # fmt: skip
"""The scalar functions with their parameters and their result, as Spark DDL."""


def date_parts(key: str, text: str | None) -> Iterator[tuple[str, int | None, int | None, int | None]]:
    """A key with the day, the month and the year of its date."""
    yield key, extract_day(text), extract_month(text), extract_year(text)


def pairs_of(key: str, names: str) -> Iterator[tuple[str, str]]:
    """Every pair of names of a JSON list."""
    for pair in itertools.combinations(json.loads(names), 2):
        yield key, json.dumps(pair)


def words_of(key: str, text: str) -> Iterator[tuple[str, str]]:
    """Every word of a text."""
    for word in text.split():
        yield key, word


def read_file(path: str) -> Iterator[tuple[str]]:
    """The lines of a file."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            yield (line,)


def records_of_json(line: str) -> Iterator[tuple[str, str]]:
    """The DOI and the text on funding in an object."""
    record = json.loads(line)
    yield record["publicationdoi"], record["fundinginfo"]


def records_of_xml(line: str) -> Iterator[tuple[str, str]]:
    """The same in an element."""
    element = ElementTree.fromstring(line)
    yield element.findtext("publicationdoi", ""), element.findtext("fundinginfo", "")


def middle(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None


def latest(values: Iterable[str | None]) -> str | None:
    """The greatest text."""
    return max((value for value in values if value is not None), default=None)


def summary(values: Sequence[float]) -> str:
    """Count, mean, deviation and quartiles, as JSON."""
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else []
    return json.dumps([len(values), statistics.fmean(values), statistics.pstdev(values), quartiles])


def clusters(keys: Sequence[str], amounts: Sequence[float]) -> list[tuple[str, int]]:
    """Five clusters of amounts, by ten rounds of Lloyd's algorithm."""
    ordered = sorted(amounts)
    centres = [ordered[len(ordered) * (2 * n + 1) // 10] for n in range(5)]
    near: list[int] = []
    for _ in range(10):
        near = [min(range(5), key=lambda n, amount=amount: abs(amount - centres[n])) for amount in amounts]  # type: ignore[misc]
        for n in range(5):
            own = [amount for amount, cluster in zip(amounts, near, strict=True) if cluster == n]
            centres[n] = statistics.fmean(own) if own else centres[n]
    return list(zip(keys, near, strict=True))


def top_five(ones: Sequence[str], others: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str, float]]:
    """The five pairs with the highest scores."""
    return sorted(zip(ones, others, scores, strict=True), key=lambda row: (-row[2], row[0], row[1]))[:5]


def pivoted(types: Iterable[str]) -> tuple[int, int, int]:
    """How many are publications, data sets and software."""
    counts = Counter(types)
    return counts["publication"], counts["dataset"], counts["software"]
