"""The page of `/metrics`: written in Prometheus' text format, joined from several processes, and shared by scrapes."""

import asyncio
import gzip
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

__all__ = ["PAGE_BYTES", "Page", "SharedPage", "joined", "page_of"]

log = logging.getLogger(__name__)

PAGE_BYTES = 32 << 20
"""Largest page. Metrics that do not fit are omitted, those of plugins first."""
GATHER_SECONDS = 8.0
"""How long a scrape waits for the page. Prometheus itself waits for 10 s by default."""
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)
_DIGITS = re.compile(r"(?<=\.\d{9})\d+$", re.MULTILINE)
"""What is cut off numbers: a nanosecond is precise enough."""
_VERSION = re.compile(r'(?<=[{,])version="')
"""The label before which `group` and `process` are in alphabetical order. In a value its quotation mark is escaped."""
_WITH_LABELS, _WITHOUT = re.compile(r"^([\w:]+)\{", re.MULTILINE), re.compile(r"^([\w:]+) ", re.MULTILINE)


def page_of(collector: Collector, most_bytes: int = PAGE_BYTES) -> str:
    """Write the metrics that have a series. Those that would exceed the bytes are omitted, which is logged."""
    written = (
        (metric.name, _DIGITS.sub("", generate_latest(_Alone(metric)).decode()))
        for metric in collector.collect()
        if metric.samples
    )
    return _bounded(written, most_bytes)


def joined(pages: Iterable[tuple[Mapping[str, str], str]], most_bytes: int = PAGE_BYTES) -> str:
    """Join pages of processes, each with the labels that its samples get, such as `process`. Values need no escapes.

    Texts are not parsed: that would cost 100 times as much.
    """
    heads, samples = dict[str, str](), dict[str, list[str]]()
    for labels, page in pages:
        label = ",".join(f'{name}="{value}"' for name, value in labels.items())
        for family in filter(None, _FAMILY.split(page)):
            about, kind, rest = family.split("\n", 2)
            name = about.split(" ", 3)[2]
            heads.setdefault(name, f"{about}\n{kind}\n")
            if _VERSION.search(rest):
                rest = _VERSION.sub(f'{label},version="', rest)
            else:
                rest = _WITH_LABELS.sub(rf"\1{{{label},", rest)
            samples.setdefault(name, []).append(_WITHOUT.sub(rf"\1{{{label}}} ", rest))
    return _bounded(((name, head + "".join(samples[name])) for name, head in heads.items()), most_bytes)


def _bounded(families: Iterable[tuple[str, str]], most_bytes: int) -> str:
    kept, size, omitted = list[str](), 0, list[str]()
    for name, text in families:
        if size + len(text) <= most_bytes:
            size += len(text)
            kept.append(text)
        else:
            omitted.append(name)
    if omitted:
        log.warning("metrics are omitted of a scrape", extra={"most_bytes": most_bytes, "metrics": omitted[:20]})
    return "".join(kept)


class _Alone(Collector):
    """One metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


class Page(NamedTuple):
    """A gathered page."""

    text: bytes
    packed: bytes
    """The same, compressed by gzip."""


class SharedPage:
    """The page that scrapes get. Use it on one event loop.

    It has all that was counted before a scrape came. One page is gathered at a time, and all scrapes that come
    meanwhile share the next one.
    """

    def __init__(self, gather: Callable[[], str], threads: Executor) -> None:
        """`gather` writes the page, on one of the threads."""
        self._gather, self._threads = gather, threads
        self._gathering: asyncio.Future[Page] | None = None
        self._next: asyncio.Task[Page] | None = None

    async def get(self, seconds: float = GATHER_SECONDS) -> Page:
        """The page. Raises TimeoutError after `seconds`; gathering goes on, for those who still wait."""
        if self._next is None:
            self._next = asyncio.create_task(self._gather_next())
            self._next.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits
        async with asyncio.timeout(seconds):
            return await asyncio.shield(self._next)

    async def _gather_next(self) -> Page:
        if self._gathering is not None:
            await asyncio.wait([self._gathering])
        self._gathering = asyncio.get_running_loop().run_in_executor(self._threads, self._gathered)
        self._next = None
        return await self._gathering

    def _gathered(self) -> Page:
        text = self._gather().encode()
        return Page(text, gzip.compress(text, 1))
