"""When a stream is better off on another server."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from remote_udf.v1 import message_pb2 as pb
from spark_client.base.server_load import ServerLoad

LOADS = st.builds(ServerLoad, st.floats(0, 50), st.integers(1, 500).map(float), st.sampled_from([1.0, 2.0, 4.0, 16.0]))


def test_the_server_with_less_load_is_better():
    assert ServerLoad(3.0, 1, 1.0).exceeds(ServerLoad(0.5, 100, 1.0))
    assert not ServerLoad(0.5, 100, 1.0).exceeds(ServerLoad(3.0, 1, 1.0))


def test_of_like_loads_the_one_with_fewer_streams_per_core_is_better():
    assert ServerLoad(0.6, 20, 4.0).exceeds(ServerLoad(0.5, 16, 4.0))
    assert not ServerLoad(0.6, 20, 4.0).exceeds(ServerLoad(0.5, 18, 4.0))
    assert ServerLoad(0.6, 20, 2.0).exceeds(ServerLoad(0.5, 20, 4.0))
    assert not ServerLoad(0.6, 20, 4.0).exceeds(ServerLoad(0.5, 20, 2.0))


def test_a_difference_of_chance_moves_no_stream():
    assert not ServerLoad(0.8, 20, 1.0).exceeds(ServerLoad(0.5, 20, 1.0))
    assert not ServerLoad(30.0, 20, 1.0).exceeds(ServerLoad(25.0, 20, 1.0))


@given(LOADS, LOADS)
def test_a_stream_that_has_moved_does_not_move_back(here, there):
    assume(here.exceeds(there))
    # In the worst case the loads stay as they were until the next look.
    after = ServerLoad(there.load, there.streams + 1, there.cores)
    assert not after.exceeds(ServerLoad(here.load, here.streams - 1, here.cores))


@given(LOADS)
def test_a_server_is_never_better_than_itself(load):
    assert not load.exceeds(load)


@pytest.mark.parametrize(
    "told",
    [
        pb.Load(load=math.nan, streams=1, cores=1), pb.Load(load=math.inf, streams=1, cores=1),
        pb.Load(load=-1, streams=1, cores=1), pb.Load(load=1, streams=1), pb.Load(load=1, streams=-1, cores=1),
        pb.Load(load=1, streams=1, cores=math.inf),
    ],
)  # fmt: skip
def test_a_load_that_makes_no_sense_is_none(told):
    assert ServerLoad.read(told) is None
