"""Proxy: a network in front of one server that cuts connections, delays data or discards it."""

import contextlib
import random
import socket
import threading
import time

__all__ = ["Proxy"]


class Proxy:
    """Forwards TCP to a port, with the configured faults. It has a thread per connection and direction."""

    def __init__(self, port, seed=0):
        self._behind = port
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.delay = 0.0
        """The maximum delay of a piece of data in seconds."""
        self.swallow = False
        """Whether all data is accepted and discarded, without an error."""
        self.cuts = 0
        self._connections = set()
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self):
        """Close every connection in the middle."""
        for one in list(self._connections):
            self.cuts += 1
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self):
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                continue
            self._connections |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), name="proxy", daemon=True).start()

    def _pass_on(self, source, sink):
        try:
            while data := source.recv(65_536):
                if self.delay:
                    time.sleep(self._random.uniform(0.0, self.delay))
                while self.swallow and not self._closed:
                    time.sleep(0.05)
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                self._connections.discard(one)
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
