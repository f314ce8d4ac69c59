"""A look-up service over HTTP that takes 20 ms per answer, like one across a network.

    python -m examples.demo.lookup_service

Prints its base URL when it listens, and ends with its standard input.

GET airport?code=SFO                              an airport as JSON, or 404
GET airport?latitude=37.6&longitude=-122.4        the nearest airport
GET airport?text=San+Francisco                    the first airport that the text names
GET seattle?hour=2010-01-01T00                    the temperature of an hour
GET statistics                                    answers, and the most concurrent requests, since the last such GET
"""

import asyncio
import csv
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from vega_datasets import data

from examples.demo.airports import Airports

__all__ = ["LookupService"]

ANSWER_SECONDS = 0.020


class LookupService:
    """The two lookups, and their statistics."""

    def __init__(self, airports: Airports, temperatures: Mapping[str, float]) -> None:
        """`temperatures` are degrees Fahrenheit by hour, such as 2010-01-01T00."""
        self._airports = airports
        self._temperatures = temperatures
        self._now = self._most = self._answers = 0

    def app(self) -> web.Application:
        """The service as an aiohttp application."""
        app = web.Application()
        app.router.add_get("/airport", lambda request: self._answer(request, self._airport))
        app.router.add_get("/seattle", lambda request: self._answer(request, self._seattle))
        app.router.add_get("/statistics", self._statistics)
        return app

    async def _answer(self, request: web.Request, look_up: Callable[[Mapping[str, str]], Any]) -> web.Response:
        self._now += 1
        self._most = max(self._most, self._now)
        try:
            await asyncio.sleep(ANSWER_SECONDS)
            found = look_up(request.query)
        except (KeyError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"{type(error).__name__}: {error}") from None
        finally:
            self._now -= 1
            self._answers += 1
        return web.json_response(found) if found is not None else web.Response(status=404)

    def _airport(self, query: Mapping[str, str]) -> dict[str, Any] | None:
        if "code" in query:
            airport = self._airports.by_code(query["code"])
        elif "text" in query:
            airport = self._airports.search(query["text"])
        else:
            airport = self._airports.nearest(float(query["latitude"]), float(query["longitude"]))
        return airport.to_json() if airport else None

    def _seattle(self, query: Mapping[str, str]) -> dict[str, Any] | None:
        temperature = self._temperatures.get(query["hour"])
        return {"fahrenheit": temperature} if temperature is not None else None

    async def _statistics(self, request: web.Request) -> web.Response:
        seen = {"answers": self._answers, "most_at_once": self._most}
        self._answers, self._most = 0, self._now
        return web.json_response(seen)


def _seattle_temperatures() -> dict[str, float]:
    with Path(data.seattle_temps.filepath).open(newline="", encoding="utf-8") as file:
        # The file writes 2010/01/01 00:00 for 2010-01-01T00.
        return {
            row["date"].replace("/", "-").replace(" ", "T").split(":")[0]: float(row["temp"])
            for row in csv.DictReader(file)
        }


async def _serve() -> None:
    runner = web.AppRunner(LookupService(Airports.load(), _seattle_temperatures()).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}/", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve())
