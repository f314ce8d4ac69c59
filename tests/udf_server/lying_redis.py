"""A Redis for tests that answers what its clients ask for, or lies: a thread that speaks the protocol.

It knows the commands and scripts that the cache, the key-value store and the ledgers send, and keeps what they write. A
lie replaces its answer to one command.
"""

import contextlib
import hashlib
import json
import random
import socketserver
import threading
import time
from collections.abc import Callable, Iterator

from udf_server.limits.sharing.ledger import Ledger

__all__ = ["Lie", "LyingRedis", "Raw", "lies_of"]

Answer = None | int | bytes | list["Answer"]


class Raw(bytes):
    """An answer as it is sent."""


Lie = Callable[[bytes, Answer], Answer | Raw]
"""Gets the name of a command and its true answer. Returns what is answered."""


class LyingRedis:
    """Listens on a free port until `close`. Set `lie` to have it lie."""

    def __init__(self) -> None:
        self.lie: Lie | None = None
        self.texts: dict[bytes, bytes] = {}
        self.hashes: dict[tuple[bytes, bytes], bytes] = {}
        self._scripts: dict[bytes, bytes] = {}
        self._ledgers: dict[bytes, Ledger] = {}
        self._lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    while line := self.rfile.readline():
                        words = []
                        for _ in range(int(line[1:])):
                            words.append(self.rfile.read(int(self.rfile.readline()[1:])))
                            self.rfile.read(2)
                        self.wfile.write(outer._answered(words))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"redis://127.0.0.1:{self._server.server_address[1]}/0"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answered(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        with self._lock:
            answer = self._answer(name, words[1:])
            if self.lie is not None and name not in (b"HELLO", b"CLIENT", b"SELECT"):
                answer = self.lie(name, answer)
        return _encoded(answer)

    def _answer(self, name: bytes, words: list[bytes]) -> "Answer | Raw":
        match name:
            case b"HELLO" | b"CLIENT":
                return Raw(b"%1\r\n+proto\r\n:3\r\n" if words[0] == b"3" else b"+OK\r\n")
            case b"INFO":
                return b"cluster_enabled:0\r\nmaxmemory_policy:noeviction\r\n"
            case b"GET":
                return self.texts.get(words[0])
            case b"MGET":
                return [self.texts.get(key) for key in words]
            case b"SET":
                self.texts.setdefault(words[0], words[1])
            case b"SCRIPT":
                digest = hashlib.sha1(words[1]).hexdigest().encode()
                self._scripts[digest] = words[1]
                return digest
            case b"EVALSHA":
                if words[0] not in self._scripts:
                    return Raw(b"-NOSCRIPT No matching script.\r\n")
                keys = int(words[1])
                return self._run(self._scripts[words[0]], words[2 : 2 + keys], words[2 + keys :])
        return Raw(b"+OK\r\n")

    def _run(self, script: bytes, keys: list[bytes], given: list[bytes]) -> Answer:
        if b"cjson" in script:
            claim = json.loads(given[0])
            ledger = self._ledgers.setdefault(keys[0], Ledger())
            return json.dumps(ledger.exchange(claim, time.monotonic())).encode()
        if b"HSET" in script:
            return [self._change(keys[0], given[place : place + 4]) for place in range(1, len(given), 4)]
        if b"HGET" in script:
            return [self.hashes.get((keys[0], key)) for key in given]
        pairs = list(zip(keys[::2], keys[1::2], strict=False))
        if b"GETRANGE" in script:
            return [
                self._claim(claim, entry, given[0], none) for (claim, entry), none in zip(pairs, given[6:], strict=True)
            ]
        if b"'SET'" in script:
            for (claim, entry), value in zip(pairs, given[1:], strict=True):
                self.texts[entry] = value
                self.texts.pop(claim, None)
            return None
        for claim in keys:
            if self.texts.get(claim) == given[0]:
                del self.texts[claim]
        return None

    def _claim(self, claim: bytes, entry: bytes, server: bytes, none: bytes) -> int:
        beginning = self.texts.get(entry, b"")[:16]
        if beginning not in (b"", none) or self.texts.get(claim, server) != server:
            return 0
        self.texts[claim] = server
        return 1

    def _change(self, name: bytes, change: list[bytes]) -> int:
        key, there, before, after = change
        if self.hashes.get((name, key)) != (before if there == b"1" else None):
            return 0
        self.hashes[name, key] = after
        return 1


def lies_of(seed: int) -> Lie:
    """A Redis that lies in about half of its answers: wrong orders and times, counts, types and sizes."""
    chance = random.Random(seed)
    before: list[Answer] = [None]

    def lie(name: bytes, answer: "Answer | Raw") -> "Answer | Raw":
        last, before[0] = before[0], answer
        if chance.random() < 0.5:
            return answer
        lists = answer if isinstance(answer, list) else [answer]
        orders: list[Answer | Raw] = [
            lists[1:] + lists[:1], lists[::-1], [lists[0] if lists else None] * len(lists), last,
            [_other(each, chance) for each in lists], [_older(each) for each in lists],
        ]  # fmt: skip
        counts: list[Answer | Raw] = [
            [*lists, None], lists[:-1], lists * 2, [], None, [[each] for each in lists], [0] * len(lists),
            [1] * len(lists), [None] * len(lists),
        ]  # fmt: skip
        types: list[Answer | Raw] = [
            7, -1, 1 << 62, b"", b"x" * 20, [5] * len(lists), [b"x" * 16] * len(lists), [2] * len(lists),
            Raw(b"*%d\r\n" % len(lists) + b"#t\r\n" * len(lists)), Raw(b"_\r\n"), Raw(b",nan\r\n"), Raw(b"*-1\r\n"),
            Raw(b"-ERR this is an error\r\n"), Raw(b"-LOADING data\r\n"), Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            Raw(b"\x00\xff\r\n"), Raw(_encoded(answer) + b"+OK\r\n"),
        ]  # fmt: skip
        sizes: list[Answer | Raw] = [
            [b"y" * (1 << 21), *lists[1:]], Raw(b"*2000000000\r\n"), Raw(b"%2000000000\r\n"),
            Raw(b"*1\r\n*2000000000\r\n"), Raw(b"$2000000000\r\nab"), Raw(b"*" * 70_000), Raw(_encoded(answer)[:-3]),
            Raw(b""), Raw(b"*0\r\n" * 2_000),
        ]  # fmt: skip
        kinds = [orders, orders, orders, counts, types, sizes]
        return chance.choice(chance.choice(kinds))

    return lie


def _other(answer: Answer, chance: random.Random) -> Answer:
    """The same with another byte."""
    if not isinstance(answer, bytes) or not answer:
        return answer
    place = chance.randrange(len(answer))
    return answer[:place] + bytes([answer[place] ^ 1 << chance.randrange(8)]) + answer[place + 1 :]


def _older(answer: Answer) -> Answer:
    """An entry of the cache with another time, which its checksum does not have: far in the future."""
    return answer[:8] + b"\x00\x00\x00\x00\x00\x00\xf0\x7f" + answer[16:] if isinstance(answer, bytes) else answer


def _encoded(answer: "Answer | Raw") -> bytes:
    return b"".join(_parts(answer))


def _parts(answer: "Answer | Raw") -> Iterator[bytes]:
    if isinstance(answer, Raw):
        yield answer
    elif answer is None:
        yield b"$-1\r\n"
    elif isinstance(answer, int):
        yield b":%d\r\n" % answer
    elif isinstance(answer, bytes):
        yield b"$%d\r\n%b\r\n" % (len(answer), answer)
    else:
        yield b"*%d\r\n" % len(answer)
        for each in answer:
            yield from _parts(each)
