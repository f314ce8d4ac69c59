"""An OpenTelemetry collector that keeps all spans, and servers that send to it."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self):
        self.spans = []
        self.came = threading.Condition()

    def Export(self, request, context):
        with self.came:
            for resource in request.resource_spans:
                service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
            self.came.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name, count=1):
        """Waits for `count` spans of this name, and returns all spans so far."""

        def found():
            return [each for each in self.spans if each[1].name == name]

        with self.came:
            assert self.came.wait_for(lambda: len(found()) >= count, 30), [span.name for _, span in self.spans]
            return found()


@contextlib.contextmanager
def running_collector():
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    collector.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield collector
    server.stop(0).wait()


def environment(collector):
    return {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }


@contextlib.contextmanager
def server_process(collector, plugin, directory):
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "udf_server", "serve", "--unix-socket", f"{directory}/s", "--metrics-port", "0"),
            *("--plugin", plugin, "--no-entry-points", "--drain-seconds", "0.2"),
        ],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=directory, env=environment(collector),
    )  # fmt: skip
    try:
        yield json.loads(process.stdout.readline())["target"], process
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def attributes(span):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def events(span):
    return [event.name for event in span.events]
