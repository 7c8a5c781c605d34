"""Java's clients and mqadmin with accounts, against a broker with `aclEnable=true`: every test
holds for Java's broker as it does for ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from cometmq.testing.cluster import ProcessCluster
from tests.compat import anchor
from tests.compat.anchor import wait_until
from tests.compat.conftest import SharedPeers, Target
from tests.compat.driver import Driver, Json, StepFailed, column
from tests.compat.groups import Group

#: RocketMQ 5.5 has other accounts (ACL 2.0), so its broker is not met here.
pytestmark = pytest.mark.compat

Credentials = dict[str, str]
ADMIN: Final = {"accessKey": "admin-key", "secretKey": "secret-of-admin"}
PRODUCER: Final = {"accessKey": "producer-key", "secretKey": "secret-of-producer"}
CONSUMER: Final = {"accessKey": "consumer-key", "secretKey": "secret-of-consumer"}
LISTED: Final = {"accessKey": "listed-key", "secretKey": "secret-of-listed"}

RULES: Final = """\
globalWhiteRemoteAddresses:
- 10.1.2.{3,4}
accounts:
- accessKey: admin-key
  secretKey: secret-of-admin
  admin: true
- accessKey: producer-key
  secretKey: secret-of-producer
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=PUB
  - TBW102=PUB
- accessKey: consumer-key
  secretKey: secret-of-consumer
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - orders=SUB
  groupPerms:
  - readers=SUB
- accessKey: listed-key
  secretKey: secret-of-listed
  whiteRemoteAddress: 127.0.0.*
"""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A cluster with accounts, and the file that has them."""

    target: Target
    rules: Path


@pytest.fixture(scope="module", params=["cometmq", "java"])
def guarded(
    request: pytest.FixtureRequest, peers: SharedPeers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    """A cluster of its own, for the tests of this module."""
    peers.stop_java()
    home = tmp_path_factory.mktemp("guarded")
    rules = write_rules(home)
    if request.param == "java":
        java = anchor.JavaCluster(anchor.fetch_jars(), home, {"aclEnable": "true"})
        with java.until_killed():
            yield Guarded(Target("java", java.namesrv, java.broker, "broker-a"), rules)
    else:
        with guarded_ours(home) as ours:
            yield ours


@contextmanager
def guarded_ours(home: Path) -> Iterator[Guarded]:
    """Our cluster with accounts."""
    rules = write_rules(home)
    with ProcessCluster(home, aclEnable=True, rocketmqHome=str(home)) as ours:
        yield Guarded(Target("cometmq", ours.namesrv, ours.broker, "broker-a"), rules)


def write_rules(home: Path) -> Path:
    """Write the file with the accounts; return its path."""
    rules = home / "conf" / "plain_acl.yml"
    rules.parent.mkdir(exist_ok=True)
    rules.write_text(RULES)
    return rules


@pytest.fixture(autouse=True)
def orders(request: pytest.FixtureRequest, driver: Driver) -> None:
    """Topic orders, where a test asks for the shared cluster."""
    if "guarded" not in request.fixturenames:
        return
    guarded: Guarded = request.getfixturevalue("guarded")
    admin(driver, guarded, "updateTopic", "-b", guarded.target.broker, "-t", "orders")
    wait_until(
        lambda: anchor.route_code(guarded.target.namesrv, "orders") == 0, "a route of orders", 10
    )


def admin(driver: Driver, guarded: Guarded, command: str, *arguments: str) -> str:
    """What an mqadmin command of the administrator prints."""
    return driver.mqadmin(command, *arguments, "-n", guarded.target.namesrv, **ADMIN)


def send(
    driver: Driver, guarded: Guarded, account: Credentials, topic: str = "orders", **options: object
) -> list[dict[str, Json]]:
    """Send with an account, by a producer that no other call uses."""
    group = f"p-{next(Group.ids)}"
    return driver.send(guarded.target.namesrv, topic, group=group, **account, **options)


@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_an_account_sends_what_it_may(driver: Driver, guarded: Guarded, mode: str) -> None:
    sent = send(driver, guarded, PRODUCER, count=8, mode=mode)
    assert set(column(sent, "status")) == {"SEND_OK"}


@pytest.mark.parametrize(
    ("account", "topic", "reason"),
    [
        (CONSUMER, "orders", "No default permission for topic:orders"),
        (PRODUCER | {"secretKey": "another-secret"}, "orders", "Check signature failed"),
        (PRODUCER | {"accessKey": "nobody-key"}, "orders", "No acl config for nobody-key"),
        ({}, "orders", "No accessKey is configured"),
    ],
)
def test_other_sends_are_refused(
    driver: Driver, guarded: Guarded, account: Credentials, topic: str, reason: str
) -> None:
    with pytest.raises(StepFailed, match=reason):
        send(driver, guarded, account, topic)


def test_a_white_list_replaces_a_signature(driver: Driver, guarded: Guarded) -> None:
    wrong = LISTED | {"secretKey": "another-secret"}
    assert column(send(driver, guarded, wrong), "status") == ["SEND_OK"]


def test_an_account_consumes_what_it_may(driver: Driver, guarded: Guarded) -> None:
    group = Group(driver, guarded.target, "readers", "orders")
    try:
        member = group.join(**CONSUMER, **{"from": "LAST_OFFSET"})
        prefix = f"for-readers-{next(Group.ids)}-"

        def arrived() -> bool:
            send(driver, guarded, PRODUCER, count=4, prefix=prefix)
            received = group.received(member, 1, settle_ms=0)
            return any(str(row["body"]).startswith(prefix) for row in received)

        wait_until(arrived, "a message for the group", 60)
    finally:
        group.close()


@pytest.mark.runs("4.9.7")  # mqadmin 5 has commands for other accounts
def test_mqadmin_changes_accounts(driver: Driver, guarded: Guarded) -> None:
    """Create, use, change, list and delete an account; the file has a version that grows."""
    broker = ("-b", guarded.target.broker)
    made = {"accessKey": f"made-key-{next(Group.ids)}", "secretKey": "secret-of-made"}
    named = (*broker, "-a", made["accessKey"])
    before = version(driver, guarded)
    admin(
        driver, guarded, "updateAclConfig", *named, "-s", made["secretKey"],
        "-i", "DENY", "-u", "DENY", "-t", "orders=PUB", "-g", "readers=SUB",
    )  # fmt: skip
    assert column(send(driver, guarded, made), "status") == ["SEND_OK"]
    assert version(driver, guarded) == before + 1
    assert made["accessKey"] in admin(driver, guarded, "getAccessConfigSubCommand", *broker)
    admin(driver, guarded, "updateAclConfig", *named, "-s", made["secretKey"], "-t", "orders=SUB")
    with pytest.raises(StepFailed, match="No default permission for topic:orders"):
        send(driver, guarded, made)
    admin(driver, guarded, "deleteAccessConfig", *named)
    with pytest.raises(StepFailed, match=f"No acl config for {made['accessKey']}"):
        send(driver, guarded, made)


@pytest.mark.runs("4.9.7")
def test_mqadmin_changes_the_white_list(driver: Driver, tmp_path: Path) -> None:
    """An address on it needs no account, until it is taken off again. Java's broker keeps it."""
    with guarded_ours(tmp_path) as ours:
        broker = ("-b", ours.target.broker)
        admin(driver, ours, "updateTopic", *broker, "-t", "orders")
        admin(driver, ours, "updateGlobalWhiteAddr", *broker, "-g", "10.1.2.3,127.0.0.*")
        assert column(send(driver, ours, {}), "status") == ["SEND_OK"]
        admin(driver, ours, "updateGlobalWhiteAddr", *broker, "-g", "10.1.2.3")
        with pytest.raises(StepFailed, match="No accessKey is configured"):
            send(driver, ours, {})


def version(driver: Driver, guarded: Guarded) -> int:
    """The counter of the default file's version, as mqadmin prints it."""
    printed = admin(driver, guarded, "clusterAclConfigVersion", "-b", guarded.target.broker)
    found = re.search(r"plain_acl\.yml\s+(\d+)", printed)
    assert found, printed
    return int(found[1])


def test_mqadmin_needs_an_administrator(driver: Driver, guarded: Guarded) -> None:
    """Changes by others are refused, and change nothing."""
    where = ("-n", guarded.target.namesrv, "-b", guarded.target.broker, "-t", "not-made")
    for account in (PRODUCER, {}, ADMIN | {"secretKey": "another-secret"}):
        driver.mqadmin("updateTopic", *where, **account)
    assert "not-made" not in guarded.rules.read_text()
    assert anchor.route_code(guarded.target.namesrv, "not-made") != 0


def test_a_changed_file_is_read_again(driver: Driver, guarded: Guarded) -> None:
    """While it is invalid, the accounts before it stay in force."""
    added = {"accessKey": f"added-key-{next(Group.ids)}", "secretKey": "secret-of-added"}
    entry = "".join(
        f"{'- ' if key == 'accessKey' else '  '}{key}: {value}\n" for key, value in added.items()
    )
    before = guarded.rules.read_text()
    head, accounts, rest = before.partition("accounts:\n")
    guarded.rules.write_text(head + accounts + entry + "  defaultTopicPerm: PUB\n" + rest)

    def accepted() -> bool:
        try:
            send(driver, guarded, added)
        except StepFailed:
            return False
        return True

    wait_until(accepted, "the account of the changed file", 30)
    guarded.rules.write_text(before)
    wait_until(lambda: not accepted(), "the end of the account", 30)
    assert column(send(driver, guarded, PRODUCER), "status") == ["SEND_OK"]
