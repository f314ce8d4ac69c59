"""The ports of tests: each is given once, and nobody else gets it by chance."""

import socket

from tests.ports import Ports, free_port


def test_no_socket_that_takes_any_port_gets_one_of_a_test():
    ports = [free_port() for _ in range(200)]
    assert len({*ports}) == len(ports)
    for _ in range(200):
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert server.getsockname()[1] > max(ports)


def test_a_port_that_is_taken_is_not_given():
    taken, free = free_port(), free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert Ports(iter([taken, free]).__next__).free() == free


def test_a_port_is_given_once():
    first, second = free_port(), free_port()
    ports = Ports(iter([first, first, second]).__next__)
    assert [ports.free(), ports.free()] == [first, second]
