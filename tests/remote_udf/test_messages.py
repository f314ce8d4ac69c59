"""The envelope: this code and protobuf write the same bytes."""

import tracemalloc

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from remote_udf.errors import ProtocolViolation
from remote_udf.messages import encode, read_request, read_response
from remote_udf.v1 import message_pb2 as pb

longs = st.integers(-(2**63), 2**63 - 1)
contexts = st.builds(pb.CallContext, operation_id=st.text(max_size=5), stage=longs, micro_batch=longs)
opens = st.builds(
    pb.Open,
    protocol_version=st.integers(0, 9),
    function=st.text(max_size=200),
    arguments=st.binary(max_size=50),
    # There is one entry at most, because protobuf does not define the order of maps.
    options=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=1),
    context=contexts,
)
requests = st.one_of(
    st.builds(pb.ExecuteRequest, open=opens),
    st.builds(pb.ExecuteRequest, batch=st.builds(pb.Batch, sequence=longs, first_row=longs, rows=longs)),
    st.just(pb.ExecuteRequest(finish=pb.Finish())),
    st.builds(pb.ExecuteRequest, cancel=st.builds(pb.Cancel, reason=st.text(max_size=5))),
    st.just(pb.ExecuteRequest()),
)
counts = st.builds(pb.StreamCounts, rows_in=longs, rows_ok=longs, rows_failed=longs)
responses = st.one_of(
    st.builds(pb.ExecuteResponse, result=st.builds(pb.Result, first_row=longs, rows=longs, errors=st.binary())),
    st.builds(pb.ExecuteResponse, finished=st.builds(pb.Finished, counts=counts)),
    st.builds(pb.ExecuteResponse, progress=st.builds(pb.Progress, rows_done=longs)),
    st.builds(pb.ExecuteResponse, error=st.builds(pb.Error, kind=st.integers(0, 3), message=st.text(max_size=5))),
)
payloads = st.lists(st.binary(max_size=300), max_size=3)
SIDES = {pb.ExecuteRequest: read_request, pb.ExecuteResponse: read_response}


@given(requests | responses, payloads)
def test_bytes_are_those_protobuf_writes(envelope, data):
    written = encode(envelope, data)
    message = type(envelope).FromString(written)
    # Protobuf omits empty fields.
    assume(message.padding and message.data)
    assert message.SerializeToString() == written


@given(requests | responses, payloads)
def test_protobuf_finds_envelope_and_data(envelope, data):
    message = type(envelope).FromString(encode(envelope, data))
    assert message.data == b"".join(data)
    message.ClearField("data")
    message.ClearField("padding")
    assert message == envelope


@given(requests | responses)
def test_without_data_the_bytes_are_the_envelope(envelope):
    assert encode(envelope) == envelope.SerializeToString()


@given(requests | responses, payloads)
def test_data_starts_at_an_aligned_offset(envelope, data):
    written = encode(envelope, data)
    assert (len(written) - sum(map(len, data))) % 16 == 0


@given(requests | responses, st.binary(max_size=200), st.binary(max_size=20))
def test_messages_of_protobuf_are_read(envelope, data, padding):
    message = type(envelope)()
    message.CopyFrom(envelope)
    message.data, message.padding = data, padding
    read = SIDES[type(envelope)](message.SerializeToString())
    assert read.envelope == envelope
    assert bytes(read.data or b"") == data


@given(requests | responses, payloads)
def test_what_is_written_is_read(envelope, data):
    read = SIDES[type(envelope)](encode(envelope, data))
    assert (read.envelope, bytes(read.data)) == (envelope, b"".join(data))


def test_absent_data_is_none_and_empty_data_is_empty():
    assert read_request(encode(pb.ExecuteRequest(finish=pb.Finish()))).data is None
    assert bytes(read_request(encode(pb.ExecuteRequest(finish=pb.Finish()), [])).data) == b""


def test_data_is_a_view_into_the_message():
    message = encode(pb.ExecuteRequest(), [b"payload"])
    assert read_request(message).data.obj is message


def test_fields_of_a_newer_protocol_are_passed_over():
    # field 20, once in each wire type that protobuf still writes
    unknown = b"\xa0\x01\x96\x01" + b"\xa1\x01" + bytes(8) + b"\xa2\x01\x02hi" + b"\xa5\x01" + bytes(4)
    message = read_request(unknown + encode(pb.ExecuteRequest(cancel=pb.Cancel(reason="why")), [b"x"]))
    assert (message.envelope.cancel.reason, bytes(message.data)) == ("why", b"x")


@given(st.binary(max_size=100))
@example(b"\x7a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_random_bytes_are_read_or_a_violation(data):
    for read in (read_request, read_response):
        try:
            read(data)
        except ProtocolViolation:
            continue


@given(requests | responses, payloads, st.data())
def test_mutated_messages_mean_what_protobuf_takes_them_for(envelope, payload, data):
    written = bytearray(encode(envelope, payload) or b"\0")
    for _ in range(data.draw(st.integers(1, 3))):
        written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = SIDES[type(envelope)](bytes(written))
    except ProtocolViolation:
        return
    message = type(envelope).FromString(bytes(written))
    assert bytes(read.data or b"") == message.data
    message.ClearField("data")
    message.ClearField("padding")
    assert message.SerializeToString(deterministic=True) == read.envelope.SerializeToString(deterministic=True)


@pytest.mark.parametrize("read", [read_request, read_response])
def test_a_message_cut_short_is_a_violation(read):
    whole = encode(pb.ExecuteRequest(cancel=pb.Cancel(reason="x" * 50)), [b"y" * 50])
    for length in range(1, len(whole)):
        try:
            message = read(whole[:length])
        except ProtocolViolation:
            continue
        # Only a cut between two fields gives a valid message.
        assert message.data is None


# Messages that would need far more memory, or time, than their size.


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    return varint(number << 3 | 2) + varint(len(value)) + value


MANY = 1_000_000


@pytest.mark.parametrize(
    "message",
    [
        b"\x60\x00" * MANY,
        field(1, b"") * MANY,
        field(1, field(6, b"") * MANY),
        field(1, field(9, field(1, b"") * MANY)),
        field(1, b"\xa0\x06\x00" * MANY),
        field(1, field(100, bytes(2 * MANY))),
        field(1, field(8, b"\x01" * 2 * MANY)),
        field(1, field(2, b"a" * 2 * MANY)),
        field(2, b"\xa0\x06\x00" * MANY),
    ],
    ids=[
        "unknown numbers", "opens", "options", "tables", "unknown fields of open", "one unknown field",
        "packed numbers", "a name", "unknown fields of batch",
    ],
)  # fmt: skip
def test_a_message_of_many_fields_is_refused_before_they_are_parsed(message):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation, match="more than"):
            read_request(message)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000


def test_arrow_data_in_an_envelope_may_be_large():
    state = bytes(3_000_000)
    request = pb.ExecuteRequest(open=pb.Open(function="f", process=pb.ProcessCall(broadcast_state=state)))
    assert read_request(encode(request)).envelope == request
