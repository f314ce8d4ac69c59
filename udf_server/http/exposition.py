"""The page of `/metrics`: written in Prometheus' text format, joined from several processes, and shared by scrapes."""

import asyncio
import gzip
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

__all__ = ["PAGE_BYTES", "Page", "SharedPage", "joined", "page_of"]

log = logging.getLogger(__name__)

PAGE_BYTES = 32 << 20
"""Largest page. Metrics that do not fit are omitted, those of plugins first."""
KEPT_SECONDS = 1.0
"""A page is kept for this time, so that several scrapers cost as much as one."""
GATHER_SECONDS = 8.0
"""How long a scrape waits for the page. Prometheus itself waits for 10 s by default."""
_FAMILY = re.compile(r"^(?=# HELP )", re.MULTILINE)
_DIGITS = re.compile(r"(?<=\.\d{9})\d+$", re.MULTILINE)
"""What is cut off numbers: a nanosecond is precise enough."""
_VERSION = re.compile(r'(?<=[{,])version="')
"""The label before which `process` is in alphabetical order. Within a value its quotation mark would be escaped."""
_WITH_LABELS, _WITHOUT = re.compile(r"^([\w:]+)\{", re.MULTILINE), re.compile(r"^([\w:]+) ", re.MULTILINE)


def page_of(collector: Collector, most_bytes: int = PAGE_BYTES) -> str:
    """Write the metrics that have a series. Those that would exceed the bytes are omitted, which is logged."""
    written = (
        (metric.name, _DIGITS.sub("", generate_latest(_Alone(metric)).decode()))
        for metric in collector.collect()
        if metric.samples
    )
    return _bounded(written, most_bytes)


def joined(pages: Iterable[tuple[str, str]], most_bytes: int = PAGE_BYTES) -> str:
    """Join pages of processes, by the name of the process. Each sample gets it as the label `process`.

    Texts are not parsed: that would cost 100 times as much.
    """
    heads, samples = dict[str, str](), dict[str, list[str]]()
    for process, page in pages:
        label = f'process="{process}"'
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
    """The page that all scrapes get: gathered by one at a time, and kept for a second. Use it on one event loop."""

    def __init__(
        self, gather: Callable[[], str], threads: Executor, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`gather` writes the page, on one of the threads."""
        self._gather, self._threads, self._clock = gather, threads, clock
        self._gathering: Future[tuple[Page, float]] | None = None

    async def get(self, seconds: float = GATHER_SECONDS) -> Page:
        """The page. Raises TimeoutError after `seconds`; gathering goes on, and a later call gets the page."""
        if self._gathering is None or self._is_old(self._gathering):
            self._gathering = self._threads.submit(self._gathered)
        async with asyncio.timeout(seconds):
            page, _ = await asyncio.shield(asyncio.wrap_future(self._gathering))
        return page

    def _gathered(self) -> tuple[Page, float]:
        text = self._gather().encode()
        return Page(text, gzip.compress(text, 1)), self._clock()

    def _is_old(self, gathering: "Future[tuple[Page, float]]") -> bool:
        if not gathering.done():
            return False
        return gathering.exception() is not None or self._clock() - gathering.result()[1] >= KEPT_SECONDS
