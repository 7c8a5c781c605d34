"""How addresses are written."""

import pytest

from cometmq.spark.brokers.access import addresses


def test_addresses_are_separated_by_semicolons_or_commas() -> None:
    assert addresses(" a:1; b:65535,[::1]:2;") == ("a:1", "b:65535", "[::1]:2")


@pytest.mark.parametrize("text", ["", ";", "a", "a:", ":1", "a:0", "a:65536", "a:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no address|host:port"):
        addresses(text)
