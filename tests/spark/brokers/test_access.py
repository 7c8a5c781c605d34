"""How addresses are written."""

import pytest

from cometmq.protocol.acl import Credentials
from cometmq.spark.brokers.access import ReadFrom, addresses, parse
from cometmq.spark.options import BadOption


def test_addresses_are_separated_by_semicolons_or_commas() -> None:
    assert addresses(" a:1; b:65535,[::1]:2;") == ("a:1", "b:65535", "[::1]:2")


@pytest.mark.parametrize("text", ["", ";", "a", "a:", ":1", "a:0", "a:65536", "a:x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no address|host:port"):
        addresses(text)


def test_accounts_come_whole_and_their_secret_stays_one() -> None:
    found = parse({"nameservers": "a:1", "accessKey": "who", "secretKey": "hush hush"})
    assert found.account == Credentials("who", "hush hush")
    assert "hush" not in repr(found)
    for given, missing in (({"accessKey": "x"}, "secretKey"), ({"secretKey": "x"}, "accessKey")):
        with pytest.raises(BadOption, match=f"'{missing}': must be given together with"):
            parse({"nameservers": "a:1", **given})


def test_who_is_read_from() -> None:
    assert parse({"nameservers": "a:1"}).read_from is ReadFrom.MASTER
    assert parse({"nameservers": "a:1", "readFrom": "Slave"}).read_from is ReadFrom.SLAVE
    with pytest.raises(BadOption, match="not one of master, slave"):
        parse({"nameservers": "a:1", "readFrom": "both"})
