"""Signatures of requests."""

from base64 import b64encode

from cometmq.protocol.acl import Account, signature, signed

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
    account = Account("what do ", KEY)
    assert signed(account, {"b": "ya want for "}, b"nothing?") == {
        "AccessKey": "what do ",
        "Signature": EXPECTED,
    }


def test_texts_are_utf_8() -> None:
    assert signature(KEY, {"a": "ä"}) == signature(KEY, {}, "ä".encode())


def test_the_secret_key_is_not_printed() -> None:
    assert "Jefe" not in repr(Account("who", KEY))
