"""Weights of versions in the server's file: what is read, what is refused at the start, and what callers are told."""

import pytest
from grpc import aio

import udf_server as udf
from remote_udf.v1 import service_pb2
from udf_server.base.errors import InvalidConfig
from udf_server.hosting.registry import Registry, parse_weights
from udf_server.serving.config import ServerConfig, load_config
from udf_server.serving.server import Server, running_server


def versioned(name, version):
    @udf.scalar(name=name, version=version)
    def f(a: int) -> int:
        return a

    return f


def registry_of(*keys):
    return Registry([("p", versioned(*key.split("@"))) for key in keys])


def test_weights_are_shares_of_the_file(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('[weights]\n"feels@2" = "5 %"\n"feels@3" = 0.25\n"other@2" = "0 %"\n')
    assert load_config(file).weights == {"feels@2": 0.05, "feels@3": 0.25, "other@2": 0.0}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"feels@2": "-5 %"}, "weights.\"feels@2\": '-5 %' is not a share: write '5%'"),
        ({"feels@2": 5}, 'weights."feels@2": 5 is not a share'),
        ({"feels@2": True}, 'weights."feels@2": True is not a share'),
        ({"feels@2": "nan"}, "is not a share"),
        ({"feels@2": "many"}, "is not a share"),
        ({"feels@2": [1]}, "is not a share"),
        ({"feels": "5 %"}, 'weights."feels": a weight is for one version of a function: write "feels@2"'),
        ({"feels@": "5 %"}, "is not a function name"),
        ({"f@2": "60 %", "g@2": "60 %", "f@3": "41 %"}, "the versions of f have 60 % \\+ 41 % of the jobs"),
    ],
)
def test_what_is_not_a_share_is_refused(table, message):
    with pytest.raises(InvalidConfig, match=message):
        parse_weights(table)


def test_a_table_of_another_shape_is_refused(tmp_path):
    file = tmp_path / "server.toml"
    file.write_text('weights = "5 %"\n')
    with pytest.raises(InvalidConfig, match="setting 'weights': '5 %' is not valid"):
        load_config(file)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"gone@2": 0.1}, 'weights."gone@2": there is no such function \\(known: feels\\)'),
        ({"feels@3": 0.1}, 'weights."feels@3": function feels has no version 3 \\(known: 1, 2\\)'),
        ({"feels@1": 0.5, "feels@2": 0.4}, "every version of feels has a weight, and together they have 90 % of the"),
    ],
)
def test_a_server_whose_functions_do_not_have_the_weights_does_not_start(weights, message):
    with pytest.raises(InvalidConfig, match=message):
        Server(ServerConfig(weights=weights), registry_of("feels@1", "feels@2"))


def test_shares_that_add_up_to_all_jobs_need_no_other_version():
    weights = parse_weights({"f@1": "70 %", "f@2": "20 %", "f@3": "10 %"})
    Server(ServerConfig(weights=weights), registry_of("f@1", "f@2", "f@3"))


async def test_callers_are_told_the_weights():
    config = ServerConfig(port=0, metrics_port=0, weights={"feels@2": 0.05})
    async with (
        running_server(config, registry_of("feels@1", "feels@2")) as server,
        aio.insecure_channel(server.target) as channel,
    ):
        ask = channel.unary_unary(
            "/remote_udf.v1.UdfService/ListFunctions",
            request_serializer=service_pb2.ListFunctionsRequest.SerializeToString,
            response_deserializer=service_pb2.ListFunctionsResponse.FromString,
        )
        answer = await ask(service_pb2.ListFunctionsRequest())
    assert dict(answer.weights) == {"feels@2": 0.05}
