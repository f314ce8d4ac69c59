"""What a server has answered for each remote session, so that a driver can show it while its tasks still run."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2

__all__ = ["SessionProgress", "StreamProgress", "add_other_process"]

MOST_SESSIONS = 1_000
"""Number of sessions whose ended streams are remembered; the one that ended a stream longest ago is forgotten."""
ID_CHARACTERS = 64
"""Maximum length of the id of a session; a longer one is not counted."""


@dataclass(frozen=True)
class StreamProgress:
    """The counts of one stream, and its rows that are not answered yet."""

    session: str
    counts: pb.StreamCounts
    unanswered: int


class SessionProgress:
    """The sums of the ended streams of each session."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        self._ended: OrderedDict[str, pb.StreamCounts] = OrderedDict()

    def ended(self, stream: StreamProgress | None) -> None:
        """Count a stream that has ended; None is one that was not opened."""
        if stream is None or not 0 < len(stream.session) <= ID_CHARACTERS:
            return
        _add(self._ended.setdefault(stream.session, pb.StreamCounts()), stream.counts)
        self._ended.move_to_end(stream.session)
        while len(self._ended) > self._most:
            self._ended.popitem(last=False)

    def of(self, session: str, streams: Iterable[StreamProgress | None]) -> service_pb2.GetProgressResponse:
        """The sums of a session over its ended streams and the open ones among `streams`."""
        response = service_pb2.GetProgressResponse()
        if (ended := self._ended.get(session)) is not None:
            response.counts.CopyFrom(ended)
        for stream in streams:
            if stream is not None and session and stream.session == session:
                _add(response.counts, stream.counts)
                response.rows_unanswered += stream.unanswered
        return response


def add_other_process(response: service_pb2.GetProgressResponse, other: service_pb2.GetProgressResponse | None) -> None:
    """Add the answer of another process; None if it does not answer, so that its rows are missing.

    The load is that of the busiest process: a stream of the client may be for any of them.
    """
    if other is None:
        response.partial = True
        return
    _add(response.counts, other.counts)
    response.rows_unanswered += other.rows_unanswered
    if response.HasField("load") and other.load.load > response.load.load:
        response.load.CopyFrom(other.load)


def _add(total: pb.StreamCounts, counts: pb.StreamCounts) -> None:
    for field in pb.StreamCounts.DESCRIPTOR.fields:
        setattr(total, field.name, getattr(total, field.name) + getattr(counts, field.name))
