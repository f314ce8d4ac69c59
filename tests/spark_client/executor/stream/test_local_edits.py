"""The target `local:` after an edit: who gets the new module, and what becomes of the streams of the old one."""

import sys
import threading

import pytest

from spark_client.base.config import ClientConfig
from spark_client.executor.stream.in_process import local_transport
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until
from udf_server.base.errors import PluginError

PLUGIN = """
import pathlib, time
import udf_server as udf

@udf.scalar
def local_edited(x: int) -> int:
    while not pathlib.Path(__file__).with_name("go").exists():
        time.sleep(0.01)
    return x + {value}

@local_edited.on_close
def closed():
    pathlib.Path(__file__).with_name("closed-{value}").touch()
"""


class Named:
    def __init__(self, config):
        self.spec = list_functions(config).find("local_edited")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "local_edited_udfs.py"
    path.write_text(PLUGIN.format(value=1))
    yield path
    last = local_transport(str(path))
    last.replace()
    last.close()


def stream(path):
    config = ClientConfig(f"local:{path}", in_process=local_transport)
    call = call_of(Named(config), config.target, timeout="60 s")
    return stream_of(call, transport_for(config))


def called(opened):
    found = everything(opened)
    opened.finish()
    return found


def test_an_open_stream_ends_with_the_module_with_which_it_began(path):
    running = stream(path)
    running.submit(chunk_of([1]))
    path.write_text(PLUGIN.format(value=10))
    later = stream(path)
    later.submit(chunk_of([1]))
    path.with_name("go").touch()
    assert called(running) == {0: 2}
    assert called(later) == {0: 11}
    # The hooks of a module that was replaced are called once its last stream has ended.
    wait_until(path.with_name("closed-1").exists)
    assert not path.with_name("closed-10").exists()


def test_a_stream_that_is_opened_again_on_a_replaced_module_gets_the_new_one(path):
    path.with_name("go").touch()
    config = ClientConfig(f"local:{path}", in_process=local_transport)
    old = transport_for(config)
    path.write_text(PLUGIN.format(value=20))
    call = call_of(Named(config), config.target)
    old.close()
    again = stream_of(call, old)
    again.submit(chunk_of([1]))
    assert called(again) == {0: 21}


def test_threads_that_ask_after_an_edit_get_one_module(path):
    transports, started = [], threading.Barrier(4)
    first = local_transport(str(path))
    path.write_text(PLUGIN.format(value=30))

    def ask():
        started.wait()
        transports.append(local_transport(str(path)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({first, *transports}) == 2
    assert first not in transports


def test_a_module_that_does_not_import_is_tried_again(path):
    local_transport(str(path))
    path.write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(PluginError, match=r"ZeroDivisionError(.|\n)*1 / 0"):
            local_transport(str(path))
    path.write_text(PLUGIN.format(value=1))
    assert local_transport(str(path)) is local_transport(str(path))
