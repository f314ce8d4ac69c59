"""Session is the state machine of one Execute stream, without I/O. It decides which messages are legal when."""

from dataclasses import dataclass
from enum import Enum, auto

from remote_udf.errors import ProtocolViolation
from remote_udf.messages import Message
from remote_udf.v1 import message_pb2 as pb
from udf_server.runners.runner import InputBatch

__all__ = ["Action", "Drain", "Feed", "Session", "Start", "Stop"]


@dataclass(frozen=True)
class Start:
    """Find and open the function; then answer Opened."""

    open: pb.Open


@dataclass(frozen=True)
class Feed:
    """Call the function for these rows."""

    batch: InputBatch


@dataclass(frozen=True)
class Drain:
    """The client sends no more rows; answer Finished after the last Result."""


@dataclass(frozen=True)
class Stop:
    """The client wants no more results; answer Cancelled."""

    reason: str


Action = Start | Feed | Drain | Stop


class _State(Enum):
    NEW = auto()
    OPENING = auto()
    OPEN = auto()
    FINISHING = auto()
    ENDED = auto()


class Session:
    """Tracks what the client has sent and what it may send next. message.proto has the rules."""

    def __init__(self, most_rows: int = 1_000_000) -> None:
        """A batch may have at most `most_rows` rows, because a row can take more memory than its bytes in a message."""
        self._most_rows = most_rows
        self._state = _State.NEW
        self._batches = 0
        self.rows = 0
        """Number of rows received."""

    def receive(self, message: Message[pb.ExecuteRequest]) -> Action:
        """Return the action for a message. Raises ProtocolViolation; after that no message is legal."""
        kind = message.envelope.WhichOneof("request")
        try:
            if kind is None:
                raise ProtocolViolation("a message without a request in it")
            if self._state is _State.ENDED:
                raise ProtocolViolation(f"{kind} after the end of the stream")
            if kind == "cancel":
                self._state = _State.ENDED
                return Stop(message.envelope.cancel.reason)
            if kind == "open":
                return self._open(message.envelope.open)
            if kind == "batch":
                return self._batch(message)
            self._expect(_State.OPEN, "finish")
            self._state = _State.FINISHING
            return Drain()
        except ProtocolViolation:
            self._state = _State.ENDED
            raise

    def opened(self) -> None:
        """Allow batches. Call when Opened was sent."""
        self._state = _State.OPEN

    def ended(self) -> None:
        """Allow no more messages. Call when Finished, Cancelled or Error was sent."""
        self._state = _State.ENDED

    def _expect(self, state: _State, kind: str) -> None:
        if self._state is not state:
            raise ProtocolViolation(f"{kind} while the stream is {self._state.name.lower()}")

    def _open(self, request: pb.Open) -> Start:
        self._expect(_State.NEW, "open")
        if not request.function:
            raise ProtocolViolation("open without a function")
        self._state = _State.OPENING
        return Start(request)

    def _batch(self, message: Message[pb.ExecuteRequest]) -> Feed:
        self._expect(_State.OPEN, "batch")
        batch = message.envelope.batch
        if batch.sequence != self._batches:
            raise ProtocolViolation(f"batch {batch.sequence} where batch {self._batches} was due")
        if batch.first_row != self.rows:
            raise ProtocolViolation(f"batch {batch.sequence} starts at row {batch.first_row}, not {self.rows}")
        if not 0 < batch.rows <= self._most_rows:
            raise ProtocolViolation(f"batch {batch.sequence} has {batch.rows} rows, not 1 to {self._most_rows}")
        self._batches += 1
        self.rows += batch.rows
        waited = batch.waited.ToNanoseconds() / 1e9 if batch.HasField("waited") else 0.0
        return Feed(InputBatch(batch.first_row, batch.rows, message.data, max(waited, 0.0)))
