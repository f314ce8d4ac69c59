"""For the tests of job authors: a client without a network, and a transport that injects faults.

With a target "local:...", a job runs its functions inside Spark's own Python workers. The package of the
server must be installed there, but no server runs:

```python
remote = connect(spark, "local:geo_udfs")             # a module, or "local:/path/to/geo_udfs.py"
rows = spark.range(3).select(remote.function("plus_one")("id")).collect()
```

Without Spark, a transport replaces the network for the code that sends rows:

```python
with LocalTransport(plus_one) as transport:
    worse = FaultyTransport(transport, seed=1, loss_rate=0.2)
    stream = CallStream(call, schema, TaskInfo(), worse)
```
"""

import random
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence

from remote_udf.v1 import service_pb2
from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Place, Question, Responses, Transport, TransportLost
from spark_client.executor.stream.in_process import LocalTransport, local_transport

__all__ = ["FaultyTransport", "LocalTransport", "local_transport"]


class FaultyTransport:
    """Wraps another transport and injects lost connections and delays. The seed determines when.

    The faults of a stream depend on the seed and on the number of streams before it, not on the scheduling of
    threads. Rates are fractions of the messages from the server, from 0 to 1: before such a message, the connection
    is lost together with the message, or the message is delayed by up to `delay_seconds`.
    """

    def __init__(
        self,
        inner: Transport,
        seed: int,
        *,
        loss_rate: float = 0.0,
        most_losses: int | None = None,
        delay_rate: float = 0.0,
        delay_seconds: float = 0.01,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """At most `most_losses` connections are lost, so that a test ends."""
        self._inner = inner
        self._seed = seed
        self._loss_rate, self._most_losses = loss_rate, most_losses
        self._delay_rate, self._delay_seconds = delay_rate, delay_seconds
        self._sleep = sleep
        self._lock = threading.Lock()
        self.streams = 0
        """Number of streams opened so far."""
        self.losses = 0
        """Number of connections lost so far."""

    def servers(self) -> Sequence[str]:
        return self._inner.servers()

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = (), place: Place | None = None) -> Responses:
        with self._lock:
            self.streams += 1
            fate = random.Random(f"{self._seed}/{self.streams}")
        return _FaultyResponses(self, self._inner.execute(requests, avoid, *([place] if place else [])), fate)

    def ask_loads(self, server: str) -> Question | None:
        return self._inner.ask_loads(server)

    def heard_load(self, server: str, load: ServerLoad) -> None:
        self._inner.heard_load(server, load)

    def list_functions(self, seconds: float) -> Sequence[service_pb2.ListFunctionsResponse]:
        return self._inner.list_functions(seconds)

    def meddle(self, fate: random.Random) -> None:
        """Inject a fault before a message: wait, or raise TransportLost."""
        if fate.random() < self._delay_rate:
            self._sleep(fate.uniform(0.0, self._delay_seconds))
        if fate.random() < self._loss_rate:
            with self._lock:
                if self._most_losses is not None and self.losses >= self._most_losses:
                    return
                self.losses += 1
            raise TransportLost("injected fault")


class _FaultyResponses:
    def __init__(self, transport: FaultyTransport, inner: Responses, fate: random.Random) -> None:
        self._transport = transport
        self._inner = inner
        self.same_host = inner.same_host
        self.server = inner.server
        self._fate = fate
        self._lost = False

    def __next__(self) -> bytes:
        if self._lost:
            raise TransportLost("injected fault")
        message = next(self._inner)
        try:
            self._transport.meddle(self._fate)
        except TransportLost:
            self._lost = True
            self._inner.cancel()
            raise
        return message

    def cancel(self) -> None:
        self._inner.cancel()

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        self._inner.distrust(seconds, leave=leave)
