"""Errors say what, where and what to do, and know their code on the wire."""

import pytest

from cometmq.core import errors as e
from cometmq.protocol.codes import RequestCode

EXAMPLES: list[tuple[e.CometError, int, str]] = [
    (e.SettingsError("listenPort", "'x' is not a number"), 1, "setting 'listenPort': 'x' is not"),
    (e.LocalProtocolError("ours"), 1, "ours"),
    (e.RemoteProtocolError("theirs"), 1, "theirs"),
    (e.BadRequest(13, "too long"), 13, "too long"),
    (e.StoreCorrupt("log/0", 7, "bad size"), 1, "log/0 at offset 7: bad size"),
    (e.AclDenied("No accessKey is configured"), 1, "No accessKey is configured"),
    (e.StoreFull("full"), 14, "full"),
    (e.StoreOffline("closed"), 14, "closed"),
    (e.StoreLocked("dir"), 1, "store dir is in use by another process: stop that broker"),
    (e.NoStore("dir", "it is empty"), 1, "dir is not a store directory: it is empty"),
    (e.MessageIllegal("long"), 13, "long"),
    (e.NotConnected("h:1", "refused"), 1, "h:1: refused"),
    (e.RequestTimedOut("h:1", 10, 3000), 1, "h:1: no answer to a send within 3000 ms"),
    (e.RouteNotFound("t", "create it"), 17, "topic 't': create it"),
    (e.NotFound("group", "g", "check its name"), 1, "group 'g': check its name"),
    (e.BrokerRefused("h:1", 10, 2, "busy"), 2, "h:1 refused a send with code 2: busy"),
    (e.WrongArgument("body", "must be bytes, not str"), 13, "body must be bytes, not str"),
    (e.UndecodableMessage("t", "id", "not JSON"), 1, "id of topic 't' cannot be decoded: not JSON"),
    (e.NotOpen("the client is not open: use start()"), 1, "the client is not open"),
    (e.AlreadyInUse("consumer", "g", "close it"), 1, "already has a consumer of group 'g': close"),
]


@pytest.mark.parametrize(("error", "code", "text"), EXAMPLES)
def test_an_error_has_a_code_and_a_sentence(error: e.CometError, code: int, text: str) -> None:
    assert error.code == code
    assert error.remark == str(error)
    assert text in error.remark


def test_a_remark_can_be_said_whatever_a_file_is_called() -> None:
    odd = b"store/x\xff".decode(errors="surrogateescape")
    assert e.StoreFull(f"no room in {odd}").remark.encode() == rb"no room in store/x\udcff"


@pytest.mark.parametrize("error", [each[0] for each in EXAMPLES])
def test_a_fresh_copy_says_the_same_and_has_no_traceback(error: e.CometError) -> None:
    try:
        raise error
    except e.CometError:
        copy = e.fresh_copy(error)
    assert (type(copy), str(copy), copy.args) == (type(error), str(error), error.args)
    assert copy.__dict__ == error.__dict__
    assert copy is not error
    assert copy.__traceback__ is None


def test_the_tree_has_three_branches() -> None:
    branches = (e.ProtocolError, e.StoreError, e.ClientError)
    others = (e.SettingsError, e.NotOpen, e.UndecodableMessage)
    assert all(isinstance(error, (*branches, *others)) for error, _, _ in EXAMPLES)
    assert issubclass(e.BadRequest, e.RemoteProtocolError)


def test_every_error_that_is_raised_has_an_example() -> None:
    declared = {
        cls for cls in vars(e).values() if isinstance(cls, type) and issubclass(cls, Exception)
    }
    branches = {e.CometError, e.ProtocolError, e.StoreError, e.ClientError}
    assert {type(error) for error, _, _ in EXAMPLES} == declared - branches


def test_an_operation_is_named() -> None:
    assert str(e.RequestTimedOut("h:1", 15, 3)) == (
        "h:1: no answer to an update of a group's offset within 3 ms"
    )
    assert "refused request GET_BROKER_CONFIG" in str(
        e.BrokerRefused("h:1", RequestCode.GET_BROKER_CONFIG, 1, "")
    )
    assert "no answer to request 31999 within" in str(e.RequestTimedOut("h:1", 31_999, 3))
    assert str(e.RequestTimedOut("h:1", 10, 3, text="nobody replied")) == "nobody replied"
    assert str(e.BrokerRefused("h:1", 105, 3, "", text="a broker")) == "a broker"


@pytest.mark.parametrize("code", e._OPERATIONS)
def test_operations_are_requests(code: int) -> None:
    assert RequestCode(code)


def test_errors_of_wrong_use_are_python_s_too() -> None:
    assert issubclass(e.WrongArgument, TypeError)
    assert issubclass(e.NotOpen, RuntimeError)
    assert issubclass(e.AlreadyInUse, ValueError)


def test_fields_are_kept() -> None:
    refused = e.BrokerRefused("h:1", 10, 2, "busy")
    assert (refused.address, refused.request_code, refused.broker_remark) == ("h:1", 10, "busy")
    assert e.StoreCorrupt("p", -1, "x").offset == -1
    assert e.RequestTimedOut("h:1", 10, 3).timeout_ms == 3
    assert e.RouteNotFound("t", "x").topic == "t"
    found = e.NotFound("group", "g", "x")
    assert (found.kind, found.name) == ("group", "g")
    assert e.StoreLocked("p").path == "p"
    assert e.NotConnected("a", "b").problem == "b"
    assert e.SettingsError("k", "p").key == "k"
    assert e.WrongArgument("a", "b").argument == "a"
    used = e.AlreadyInUse("consumer", "g", "x")
    assert (used.kind, used.name) == ("consumer", "g")
