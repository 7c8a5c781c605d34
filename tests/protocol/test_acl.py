"""Signatures of requests."""

from base64 import b64encode

import pytest

from cometmq.core.errors import SettingsError
from cometmq.protocol.acl import Credentials, SignedHead, signature, signed
from cometmq.protocol.codes import Language
from cometmq.protocol.frame import JSON, decode_head

# The second case of RFC 2202.
KEY = "Jefe"
EXPECTED = b64encode(bytes.fromhex("effcdf6ae5eb2fa2d27416d5f184df9c259a7c79")).decode()


def test_values_are_signed_in_the_order_of_their_names_and_then_the_body() -> None:
    ext = {"b": "ya want ", "A": "what do ", "c": "for "}
    assert signature(KEY, ext, b"nothing?") == EXPECTED


def test_a_signature_does_not_sign_itself() -> None:
    ext = {"A": "what do ya want for nothing?", "Signature": "anything"}
    assert signature(KEY, ext) == EXPECTED


def test_who_signs_is_signed_too() -> None:
    account = Credentials("what do ", KEY)
    assert signed(account, {"b": "ya want for "}, b"nothing?") == {
        "AccessKey": "what do ",
        "Signature": EXPECTED,
    }


def test_texts_are_utf_8() -> None:
    assert signature(KEY, {"a": "ä"}) == signature(KEY, {}, "ä".encode())


def test_the_secret_key_is_not_printed() -> None:
    assert "Jefe" not in repr(Credentials("who", KEY))


def test_a_token_is_sent_and_signed() -> None:
    found = signed(Credentials("key", KEY, "token"), {"b": "value"})
    assert found["SecurityToken"] == "token"
    assert found["Signature"] == signature(KEY, {"b": "value", **found})
    assert "token" not in repr(Credentials("key", KEY, "token"))


@pytest.mark.parametrize(("access_key", "secret_key"), [("", KEY), ("key", ""), ("key", "\ud800")])
def test_keys_that_cannot_sign(access_key: str, secret_key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Credentials(access_key, secret_key)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("token", ["", "token"])
def test_a_cut_head_is_signed_for_each_value(token: str) -> None:
    """The fields that a server reads have the signature that it expects."""
    credentials = Credentials("who", KEY, token)
    ext = {"topic": "t", "offset": "", "A": "1", "count": "", "z": "\u00e4"}
    head = SignedHead(credentials, 11, ext, Language.PYTHON, ("offset", "count"))
    for offset, count, body in ((0, 32, b""), (2**40, 1, b"body"), (7, 7, b"\x00\xff")):
        pieces = head.sign((offset, count), body)
        assert len(pieces) == 4
        values = b"%d" % offset, b"%d" % count, b"5", b""
        text = b"".join(a + b for a, b in zip(pieces, values, strict=True))
        found = decode_head(JSON, text)
        assert found.opaque == 5
        assert (found.ext["offset"], found.ext["count"]) == (str(offset), str(count))
        assert found.ext.get("SecurityToken", "") == token
        assert found.ext["Signature"] == signature(KEY, found.ext, body)
