"""The ports of tests: each is given once, and nobody else gets it by chance."""

import secrets
import socket

import pytest

from tests.ports import free_port


def test_no_socket_that_takes_any_port_gets_one_of_a_test():
    ports = [free_port() for _ in range(200)]
    assert len({*ports}) == len(ports)
    for _ in range(200):
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert server.getsockname()[1] > max(ports)


def test_a_port_that_is_taken_is_not_given(monkeypatch: pytest.MonkeyPatch):
    drawn = iter([0, 0, 1, 2])
    monkeypatch.setattr(secrets, "randbelow", lambda count: 9_990 + next(drawn))
    first = free_port()
    with socket.create_server(("127.0.0.1", first + 1)):
        assert free_port() == first + 2
