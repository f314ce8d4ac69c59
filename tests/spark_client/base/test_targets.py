"""The check of a target before anything waits for a server."""

import re

import pytest

from spark_client import Security, connect
from spark_client.base.targets import absolute_target, require_target


@pytest.mark.parametrize(
    "target",
    [
        "udf.example:50051", "127.0.0.1:1", "[::1]:50051", "a:1, b:2", "dns:///udf.example:50051",
        "dns:udf.example:50051", "dns://10.0.0.2/udf.example:50051", "ipv4:10.0.0.1:50051,10.0.0.2:50051",
        "ipv6:[::1]:50051", "unix:/run/udf.sock", "unix:///run/udf.sock",
        "xds:///udf", "local:a_plugin.py", "localhost:50051", "my_host:1",
    ],
)  # fmt: skip
def test_complete_addresses_are_accepted(target):
    require_target(target)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("udf.example", 'target \'udf.example\' is not an address of a server: expected "host:port", such as '
                        '"udf.example:50051"'),
        ("dns:///udf.example", 'such as "udf.example:50051"'),
        ("", 'target \'\' is not an address of a server: expected "host:port", such as "host:50051"'),
        ("a:1,b", "target 'b' is not an address"),
        ("udf.example:port", "is not an address"),
        ("udf.example:70000", "is not an address"),
        ("http://udf.example:50051", "target 'http://udf.example:50051' is a URL; gRPC takes an address: write "
                                     "'udf.example:50051'"),
        ("https://udf.example:50051/path", "write 'udf.example:50051', and security=Security(tls=True) if the server"),
        ("grpc://udf.example:50051", "write 'udf.example:50051'"),
    ],
)  # fmt: skip
def test_an_incomplete_address_is_an_error_that_says_what_to_write(target, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        require_target(target)


class Session:
    """What `connect` asks of a session before it looks at the target."""

    createDataFrame = None


def test_connect_checks_the_target_at_once():
    with pytest.raises(ValueError, match="'localhost' is not an address"):
        connect(Session(), "localhost")


@pytest.mark.parametrize(
    ("given", "shown"), [("host:50051", "the text 'host:50051'"), (None, "a NoneType"), (3, "a int")]
)
def test_connect_without_a_session_says_that_the_session_comes_first(given, shown):
    with pytest.raises(TypeError, match=f'the Spark session first: connect\\(spark, "host:50051"\\); got {shown}'):
        connect(given)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("local:f.py", "local:{here}/f.py"), ("local:sub/f.py", "local:{here}/sub/f.py"),
        ("local:/a/f.py", "local:/a/f.py"), ("local:a_module", "local:a_module"),
        ("unix:udf.sock", "unix:{here}/udf.sock"),
        ("unix:///run/a.sock,unix:b.sock", "unix:///run/a.sock,unix:{here}/b.sock"), ("a:1, b:2", "a:1, b:2"),
        ("dns:///udf:1", "dns:///udf:1"), ("unix:a.sock, unix:/b.sock", "unix:{here}/a.sock,unix:/b.sock"),
    ],
)  # fmt: skip
def test_relative_paths_of_a_target_are_those_of_the_current_folder(target, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute_target(target) == found.format(here=tmp_path)


def test_relative_paths_of_security_are_those_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = Security(ca_file="ca.pem", certificate_file="/c.pem", key_file="sub/k.pem", token_variable="T")
    here = Security(
        ca_file=f"{tmp_path}/ca.pem", certificate_file="/c.pem", key_file=f"{tmp_path}/sub/k.pem", token_variable="T"
    )
    assert given.absolute() == here
