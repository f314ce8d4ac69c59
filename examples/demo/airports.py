"""The airports that the look-up service offers: those of the package vega_datasets."""

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vega_datasets import data

__all__ = ["AIRPORTS_CSV", "Airport", "Airports"]

AIRPORTS_CSV = Path(data.airports.filepath)
_WORD = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True)
class Airport:
    """One airport of the United States; coordinates are degrees."""

    iata: str
    name: str
    city: str
    state: str
    country: str
    latitude: float
    longitude: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Airports:
    """Finds airports by code, by location and by words."""

    def __init__(self, airports: Iterable[Airport]) -> None:
        self._by_code = {airport.iata: airport for airport in airports}
        self._by_word: dict[str, Airport] = {}
        self._by_degree: dict[tuple[int, int], list[Airport]] = {}
        for airport in self._by_code.values():
            for word in _words(f"{airport.city} {airport.name}"):
                self._by_word.setdefault(word, airport)
            self._by_degree.setdefault(_square(airport.latitude, airport.longitude), []).append(airport)
        # A match of a whole city name takes precedence over a word of it.
        self._by_city = {airport.city.lower(): airport for airport in self._by_code.values()}

    @classmethod
    def load(cls) -> "Airports":
        with AIRPORTS_CSV.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return cls(
            Airport(
                row["iata"], row["name"], row["city"], row["state"], row["country"],
                latitude=float(row["latitude"]), longitude=float(row["longitude"]),
            )
            for row in rows
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._by_code)

    def by_code(self, code: str) -> Airport | None:
        return self._by_code.get(code.strip().upper())

    def search(self, text: str) -> Airport | None:
        """Returns an airport whose city is the text, or else one for the first word that a city or a name contains."""
        city = self._by_city.get(text.strip().lower())
        return city or next((self._by_word[word] for word in _words(text) if word in self._by_word), None)

    def nearest(self, latitude: float, longitude: float) -> Airport | None:
        """Returns the nearest airport within a degree or two."""
        north, east = _square(latitude, longitude)
        near = [
            airport
            for south in (north - 1, north, north + 1)
            for west in (east - 1, east, east + 1)
            for airport in self._by_degree.get((south, west), ())
        ]
        narrow = math.cos(math.radians(latitude))
        return min(
            near,
            key=lambda a: math.hypot(a.latitude - latitude, (a.longitude - longitude) * narrow),
            default=None,
        )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _square(latitude: float, longitude: float) -> tuple[int, int]:
    return math.floor(latitude), math.floor(longitude)
