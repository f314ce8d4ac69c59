"""Readers receive the outcomes of several streams at the same time."""

import queue

from remote_udf.threads import Threads
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Answer

__all__ = ["Readers"]


class Readers:
    """One thread per stream, so that results of one call are received while another call has none."""

    def __init__(self, streams: dict[int, CallStream], threads: Threads) -> None:
        # The number of rows in flight bounds this queue.
        self._inbox: queue.SimpleQueue[tuple[int, list[Answer]] | BaseException] = threads.queue()
        self._streams = streams
        self._work = {index: threads.event() for index in streams}
        self._stopped = False
        for index in streams:
            threads.start("remote-udf-reader", self._read, index)

    def wake(self, index: int) -> None:
        """Resume the reader of this stream. Call when rows were submitted."""
        self._work[index].set()

    def ready(self) -> bool:
        """Whether `get` would return immediately."""
        return not self._inbox.empty()

    def get(self) -> tuple[int, list[Answer]]:
        """The next outcomes of any stream. Raises the exception that its reader raised."""
        item = self._inbox.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def stop(self) -> None:
        """End the threads. Each ends once its stream has no unanswered row or is closed."""
        self._stopped = True
        for event in self._work.values():
            event.set()

    def _read(self, index: int) -> None:
        stream, work = self._streams[index], self._work[index]
        try:
            while not self._stopped:
                work.wait()
                work.clear()
                while stream.unanswered and not self._stopped:
                    self._inbox.put((index, stream.receive()))
        except BaseException as error:
            self._inbox.put(error)
