"""Another client, which calls a quick function and requests /livez all the time. For each line of input it reports.

`python -m tests.fuzz.neighbour TARGET URL TOKEN`
"""

import json
import sys
import threading
import time
import urllib.request

import grpc

from remote_udf.messages import read_response
from tests.fuzz.http2 import EXECUTE
from tests.udf_server.talk import batch, finish, opening

NAP_SECONDS = 0.02
WORK_SECONDS = 0.002
"""The CPU time of a piece of work that measures how much of a core a process gets."""
CALL_SECONDS = 30.0


class Neighbour:
    """`seen` has what happened since it was last taken."""

    def __init__(self, target, url, token):
        self._execute = grpc.insecure_channel(target).stream_stream(EXECUTE)
        self._live = f"{url}/livez"
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._call()  # the first call may be slow
        self.seen = self._nothing()

    @staticmethod
    def _nothing():
        return {"calls": 0, "slowest": 0.0, "what": "", "machine": 0.0, "worked": 0.0, "waited": 0.0, "problems": []}

    def take(self):
        seen, self.seen = self.seen, self._nothing()
        return seen

    def run(self):
        while True:
            self._timed("a small call", self._call)
            self._timed("/livez", self._ask)
            began = time.monotonic()
            time.sleep(NAP_SECONDS)
            # A delay here is caused by the machine, not by the server.
            self.seen["machine"] = max(self.seen["machine"], time.monotonic() - began - NAP_SECONDS)
            self._work()

    def _work(self):
        began, cpu = time.monotonic(), time.thread_time()
        while (worked := time.thread_time() - cpu) < WORK_SECONDS:
            pass
        self.seen["worked"] += worked
        self.seen["waited"] += time.monotonic() - began

    def _timed(self, what, call):
        began = time.monotonic()
        try:
            call()
        except Exception as error:
            self.seen["problems"].append(f"{what} of the neighbour failed: {error!r:.300}")
        seconds = time.monotonic() - began
        self.seen["calls"] += 1
        if seconds > self.seen["slowest"]:
            self.seen.update(slowest=seconds, what=what)

    def _call(self):
        opened, kinds = threading.Event(), []

        def requests():
            yield opening("quick")
            opened.wait(CALL_SECONDS)
            yield batch(0, 0, [1])
            yield finish()

        try:
            for answer in self._execute(requests(), metadata=self._metadata, timeout=CALL_SECONDS):
                envelope, _ = read_response(answer)
                kinds.append(envelope.error.message or envelope.WhichOneof("response"))
                if kinds[-1] == "opened":
                    opened.set()
        finally:
            opened.set()
        if [kind for kind in kinds if kind != "progress"] != ["opened", "result", "finished"]:
            raise AssertionError(f"answered with {kinds}")

    def _ask(self):
        with urllib.request.urlopen(self._live, timeout=CALL_SECONDS) as answer:
            answer.read()


def main():
    neighbour = Neighbour(*sys.argv[1:])
    threading.Thread(target=neighbour.run, daemon=True).start()
    for _ in sys.stdin:
        print(json.dumps(neighbour.take()), flush=True)


if __name__ == "__main__":
    main()
