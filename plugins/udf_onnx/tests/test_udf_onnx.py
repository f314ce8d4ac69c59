"""File types are compared with the model's own code; sessions are for the device that was given, or fail."""

import base64
import importlib.metadata
import json
import socket
import subprocess
import sys
import threading

import onnxruntime
import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from udf_onnx import file_type
from udf_onnx.magika import FileTypes
from udf_onnx.session import open_session
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.testing import FunctionEnvironment

FILES = [
    b"import os\n\n\ndef main():\n    print(os.getcwd())\n\n\nif __name__ == '__main__':\n    main()\n",
    b'{"name": "lamp", "tags": ["a", "b"], "price": 12.5}',
    b"<!DOCTYPE html>\n<html><head><title>x</title></head><body><p>hello</p></body></html>",
    b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00",
    b"a,b,c\n1,2,3\n4,5,6\n" * 700,
    b"word " * 3_000,
    bytes(range(256)) * 40,
    b"\n \t" * 2_000 + b"SELECT a, b FROM t WHERE a > 3 ORDER BY b;\n" + b" " * 9_000,
    b"", b"x", b"\xff\xfe\xfd", b"       ", b" " * 5_000, b"1234567", b"12345678", b"\xe4" * 8,
]  # fmt: skip


@pytest.fixture(scope="module")
def reference():
    """What the model's own code says, in a process of its own."""
    code = """
import base64, json, sys
from magika import Magika
model = Magika()
found = [model.identify_bytes(base64.b64decode(each)) for each in json.load(sys.stdin)]
print(json.dumps([[each.output.label, each.output.mime_type, each.score] for each in found]))
"""
    texts = json.dumps([base64.b64encode(content).decode() for content in FILES])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, input=texts, text=True)
    return json.loads(done.stdout)


@pytest.mark.slow
async def test_types_are_those_of_the_model_s_own_code(reference):
    async with FunctionEnvironment() as environment:
        found = (await environment.run(file_type, FILES)).to_pylist()
    assert [(each["label"], each["mime_type"]) for each in found] == [(label, mime) for label, mime, _ in reference]
    assert [each["score"] for each in found] == pytest.approx([score for _, _, score in reference], abs=5e-3)
    assert {"python", "html", "pdf", "csv", "empty", "txt", "unknown"} <= {each["label"] for each in found}


async def test_a_null_has_no_type_and_a_view_of_a_long_array_has_its_own():
    contents = pa.array([FILES[0], FILES[2], None, FILES[5]], pa.binary())[1:]
    async with FunctionEnvironment() as environment:
        found = (await environment.run(file_type, contents)).to_pylist()
    assert [each and each["label"] for each in found] == ["html", None, "csv"]


async def test_nothing_is_asked_of_the_network(monkeypatch):
    def refuse(*address):
        pytest.fail(f"connects to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    async with FunctionEnvironment() as environment:
        assert (await environment.run(file_type, [FILES[0]])).to_pylist()[0]["label"] == "python"


async def test_each_instance_has_a_model_of_its_own(monkeypatch):
    together, models = threading.Barrier(2), set()
    original = FileTypes.of

    def of(self, begins, ends):
        models.add(self)
        together.wait(20)
        return original(self, begins, ends)

    monkeypatch.setattr(FileTypes, "of", of)
    async with FunctionEnvironment() as environment:
        defaults = {"file_type": {"instances": "2"}}
        environment._hosts[id(file_type)] = FunctionHost(Registry([("test", file_type)]), defaults=defaults)
        found = await environment.run(file_type, [FILES[0]] * 32, batch_rows=16)
    assert [each["label"] for each in found.to_pylist()] == ["python"] * 32
    assert len(models) == 2


@pytest.mark.parametrize("device", ["cuda:0", "xpu:0", "tpu:0"])
async def test_a_device_that_onnx_runtime_does_not_have_is_an_error(device):
    async with FunctionEnvironment(device=device) as environment:
        with pytest.raises(StreamError, match=f"ONNX Runtime does not compute on device '{device}'") as raised:
            await environment.run(file_type, [b""])
    assert raised.value.code is ErrorCode.OPEN_FAILED
    assert "CPUExecutionProvider" in raised.value.message


@pytest.mark.parametrize("works", [True, False], ids=["it works", "ONNX Runtime falls back"])
def test_a_session_computes_on_its_device_or_fails(monkeypatch, tmp_path, works):
    made = {}

    class Session:
        def __init__(self, path, options, providers):
            made.update(path=path, threads=options.intra_op_num_threads, providers=providers)

        def get_providers(self):
            return ["CUDAExecutionProvider", "CPUExecutionProvider"] if works else ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    if works:
        assert isinstance(open_session(tmp_path / "m.onnx", "cuda:0", threads=3), Session)
    else:
        with pytest.raises(
            RuntimeError, match=r"expected one of CUDAExecutionProvider, .*, found CPUExecutionProvider"
        ):
            open_session(tmp_path / "m.onnx", "cuda:0", threads=3)
    assert made["providers"] == [("CUDAExecutionProvider", {"device_id": 0})]
    assert made["threads"] == 3


async def test_an_invalid_setting_is_an_error_of_open(monkeypatch):
    monkeypatch.setenv("UDF_ONNX_THREADS", "many")
    async with FunctionEnvironment() as environment:
        with pytest.raises(StreamError, match="UDF_ONNX_THREADS"):
            await environment.run(file_type, [b""])


@pytest.mark.slow
def test_importing_the_plugin_does_not_import_onnx_runtime_or_the_model_s_own_package():
    code = "import sys, udf_onnx; assert not {'onnxruntime', 'magika'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_installed_package_is_a_plugin():
    (point,) = importlib.metadata.entry_points(group="udf_server", name="onnx")
    functions = point.load().udf_functions()
    assert [function.spec.name for function in functions] == ["file_type"]
    assert isinstance(functions[0], udf.Function)
