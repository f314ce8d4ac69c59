"""The ports of groups: by the order of the file, by their tables, or any free ones."""

import contextlib
import re
import socket

import pytest

from tests.ports import free_port
from udf_server.base.errors import InvalidConfig
from udf_server.serving.addresses import GroupPorts
from udf_server.serving.config import ServerConfig
from udf_server.serving.groups import GroupSettings


def config_of(port, **ports):
    groups = {name: GroupSettings(plugins=(f"{name}.py",), port=own) for name, own in ports.items()}
    return ServerConfig(port=port, metrics_port=0, groups=groups)


@pytest.fixture
def group_ports():
    """Reserves the ports of the groups of a server with this port."""
    with contextlib.ExitStack() as used:

        def make(port):
            made = GroupPorts("127.0.0.1", port)
            used.callback(made.close)
            return made

        yield make


@pytest.fixture
def port():
    """A port that is followed by two free ones."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as used:
            for each in (port + 1, port + 2):
                used.enter_context(socket.create_server(("127.0.0.1", each)))
            return port


def test_ports_follow_that_of_the_server_in_the_order_of_the_file_or_are_those_of_the_tables(group_ports, port):
    own = free_port()
    ports = group_ports(port).reserve(config_of(port, geo=None, models=own, text=None))
    assert ports == {"geo": port + 1, "models": own, "text": port + 3} or own == port + 3


def test_a_server_with_a_unix_socket_has_no_ports_for_groups(group_ports):
    assert group_ports(None).reserve(config_of(50051, geo=None, models=7)) == {"geo": 0, "models": 0}


def test_any_free_ports_stay_those_of_their_groups(group_ports):
    ports = group_ports(free_port())
    before = ports.reserve(config_of(0, geo=None, models=None))
    assert len({*before.values(), 0}) == 3
    after = ports.reserve(config_of(0, text=None, models=None, geo=None))
    assert {name: after[name] for name in before} == before
    ports.keep(port for name, port in after.items() if name != "models")
    with socket.create_server(("127.0.0.1", after["models"])):
        pass


def test_a_group_that_is_not_reloaded_keeps_its_port(group_ports, port):
    ports = group_ports(port)
    assert ports.reserve(config_of(port, geo=None)) == {"geo": port + 1}
    later = config_of(port, text=None, geo=None)
    with pytest.raises(InvalidConfig, match=rf"group 'text': port {port + 1} is that of group 'geo'; set `port` in"):
        ports.reserve(later, {"geo": port + 1})
    assert ports.reserve(later) == {"text": port + 1, "geo": port + 2}


def test_a_port_that_another_one_has_is_an_error_that_names_the_group(group_ports, port):
    ports = group_ports(port)
    for other, owner in ((port, "the server"), (port + 1, "group 'geo'")):
        with pytest.raises(InvalidConfig, match=f"group 'models': port {other} is that of {owner}"):
            ports.reserve(config_of(port, geo=None, models=other))
    with pytest.raises(InvalidConfig, match="group 'text': 65536 is no port"):
        ports.reserve(config_of(65_535, text=None))


@pytest.mark.parametrize("option", [socket.SO_REUSEADDR, socket.SO_REUSEPORT])
def test_a_port_at_which_another_server_listens_is_an_error(group_ports, option):
    """Also one whose processes share their port, as those of another server of the same user do."""
    taken = free_port()
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, option, 1)
        held.bind(("127.0.0.1", taken))
        held.listen()
        why = re.escape(f"cannot listen on 127.0.0.1:{taken}: ")
        with pytest.raises(InvalidConfig, match=f"^group 'geo': {why}.*in use; set `port` in"):
            group_ports(free_port()).reserve(config_of(0, geo=taken))
