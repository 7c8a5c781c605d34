"""Patterns of white lists."""

from __future__ import annotations

import pytest

from cometmq.acl.addresses import address_parts, parse_pattern
from cometmq.core.errors import AclDenied


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", ["10.0.0.1", "fe80::1"], []),
        ("*.*.*.*", ["10.0.0.1"], []),
        ("*:*:*:*:*:*:*:*", ["fe80::1"], []),
        ("", [], ["10.0.0.1", ""]),
        ("10.0.0.1", ["10.0.0.1", "::ffff:10.0.0.1"], ["10.0.0.2", "10.0.0.11", "fe80::1"]),
        ("10.0.0.1,10.0.0.9", ["10.0.0.1", "10.0.0.9"], ["10.0.0.5"]),
        ("10.0.0.{1,9}", ["10.0.0.1", "10.0.0.9"], ["10.0.0.5", "10.0.1.1"]),
        ("10.0.0.*", ["10.0.0.0", "10.0.0.255"], ["10.0.1.0", "110.0.0.1"]),
        ("10.0.*", ["10.0.3.4"], ["10.1.3.4"]),
        ("10.*", ["10.9.3.4"], ["11.1.3.4"]),
        ("10.0.0.3-9", ["10.0.0.3", "10.0.0.9"], ["10.0.0.2", "10.0.0.10"]),
        ("10.0.3-9.*", ["10.0.3.1", "10.0.9.200"], ["10.0.10.1", "10.0.2.9"]),
        ("fe80::1", ["fe80::1", "FE80:0:0:0:0:0:0:1", "[fe80::1]"], ["fe80::2", "0.0.0.1"]),
        ("fe80:0:0:0:0:0:0:{1,a}", ["fe80::1", "fe80::A"], ["fe80::2"]),
        ("fe80:0:0:0:0:0:0:1-ff", ["fe80::1", "fe80::ff"], ["fe80::100", "fe80::1:1"]),
        ("fe80:0:*", ["fe80:0:1:2:3:4:5:6"], ["fe81:0:1:2:3:4:5:6"]),
    ],
)
def test_a_pattern_matches(pattern: str, matching: list[str], other: list[str]) -> None:
    """Each form of a pattern matches its addresses, in every spelling, and no others."""
    parsed = parse_pattern(pattern)
    assert [host for host in matching if not parsed.matches(address_parts(host))] == []
    assert [host for host in other if parsed.matches(address_parts(host))] == []


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("example.com", "'example.com' is not an IP address"),
        ("10.0.0.{1,x}", "'10.0.0.x' is not an IP address"),
        ("10.{0,1}.0.{1,2}", "braces are allowed for the last part only"),
        ("10.0.0.1}", "braces are allowed for the last part only"),
        ("10.0.0.9-3", "'9-3' must be *, a number or a rising range, up to 255"),
        ("10.0.0.1-999", "up to 255"),
        ("10.0.0.-5", "'-5' must be *"),
        ("10.0.1-5", "it needs 4 parts, or * as its last"),
        ("10.0.0.0.*", "it needs 4 parts"),
        ("fe80::1-2", "without ::"),
        ("a-b", "it needs 4 parts"),
        ("1_0.0.0.*", "'1_0' must be *"),
        (",".join(["10.0.0.1"] * 1001), "it lists more than 1000 addresses"),
    ],
)
def test_an_invalid_pattern_says_what_is_wrong(pattern: str, problem: str) -> None:
    """The error names the pattern and the part."""
    with pytest.raises(AclDenied, match="white list entry") as caught:
        parse_pattern(pattern)
    assert problem in str(caught.value)
