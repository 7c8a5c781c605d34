"""The table of request codes drives decoding."""

import pytest

from cometmq.core.errors import BadRequest
from cometmq.protocol import headers as h
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.registry import FAST_DECODERS, REGISTRY, Lane, Side, decode_fields


def test_fields_become_the_struct_of_their_code() -> None:
    assert decode_fields(105, {"topic": "t", "acceptStandardJsonOnly": "true"}) == h.Topic("t")
    with pytest.raises(BadRequest, match="header field topic is missing"):
        decode_fields(105, {})


def test_fields_of_an_unknown_code_stay_as_they_are() -> None:
    assert decode_fields(9999, {"a": "b"}) == {"a": "b"}


def test_hot_codes_have_fast_decoders() -> None:
    hot = {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE}
    assert {str(int(code)).encode() for code in hot} <= set(FAST_DECODERS)
    assert all(int(code) in REGISTRY for code in FAST_DECODERS)


def test_codes_that_change_a_server_are_marked() -> None:
    changing = {int(code) for code, spec in REGISTRY.items() if spec.mutates}
    assert changing >= {17, 25, 200, 207, 215, 100, 102, 205, 216, 327}
    assert not changing & {10, 310, 11, 14, 15, 34, 36, 103, 104, 322}


def test_what_clients_share_a_channel_for_is_always_served() -> None:
    urgent = {int(code) for code, spec in REGISTRY.items() if spec.urgent}
    assert urgent >= {34, 35, 14, 15, 41, 42, 36}


def test_sends_and_pulls_run_in_the_loop_and_long_work_does_not() -> None:
    assert {REGISTRY[code].lane for code in (10, 310, 320, 11, 105)} == {Lane.LOOP}
    assert {REGISTRY[code].lane for code in (12, 202, 208, 17, 100)} == {Lane.TASK}
    assert REGISTRY[105].side is Side.NAMESRV
