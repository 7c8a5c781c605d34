"""Accounts, permissions, and the decision about a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from cometmq.acl import rules as rules_module
from cometmq.acl.requests import _READERS, needs_admin, needs_of
from cometmq.acl.rules import AclRules, Permission, parse_account, parse_permission, parse_rules
from cometmq.core.errors import AclDenied
from cometmq.protocol.acl import Credentials, signature, signed
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.registry import REGISTRY, Side

ALICE = Credentials("alice-key", "alice-secret")
ADMIN = Credentials("admin-key", "admin-secret")
HEARTBEAT = (
    b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g",'
    b'"subscriptionDataSet":[{"topic":"orders","subString":"*"}]}]}'
)


def rules(**alice: Any) -> AclRules:
    """Rules with the account of Alice, with these fields, and an administrator."""
    accounts = [
        {"accessKey": ALICE.access_key, "secretKey": ALICE.secret_key, **alice},
        {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True},
    ]
    found, _ = parse_rules({"acl.yml": {"accounts": accounts}})
    return found


def check(
    found: AclRules,
    code: int,
    fields: Mapping[str, str],
    body: bytes = b"",
    *,
    account: Credentials = ALICE,
    host: str = "10.0.0.1",
) -> None:
    """Check a request that an account signed, as a server does."""
    sent = {**fields, **signed(account, fields, body)}
    sender = found.authenticate(host, sent, body)
    if sender is not None:
        sender.check(code, needs_of(code, sent, body), needs_admin=needs_admin(code))


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        ("PUB", Permission.PUB),
        (" SUB ", Permission.SUB),
        ("PUB|SUB", Permission.PUB | Permission.SUB),
        ("SUB|PUB", Permission.PUB | Permission.SUB),
        ("DENY", Permission.DENY),
        ("pub", Permission.DENY),
        ("", Permission.DENY),
        (None, Permission.DENY),
    ],
)
def test_texts_of_permissions(text: str | None, permission: Permission) -> None:
    """Every text that is no permission denies."""
    assert parse_permission(text) == permission


@pytest.mark.parametrize(
    ("code", "fields", "body", "needed"),
    [
        (Code.SEND_MESSAGE, {"topic": "orders", "producerGroup": "p"}, b"", "orders=PUB"),
        (Code.SEND_MESSAGE_V2, {"a": "p", "b": "orders"}, b"", "orders=PUB"),
        (Code.SEND_BATCH_MESSAGE, {"a": "p", "b": "orders"}, b"", "orders=PUB"),
        (Code.SEND_MESSAGE_V2, {"a": "other", "b": "%RETRY%g"}, b"", "%RETRY%g=SUB"),
        (Code.SEND_REPLY_MESSAGE, {"topic": "orders"}, b"", "orders=PUB"),
        (Code.SEND_REPLY_MESSAGE_V2, {"b": "orders"}, b"", "orders=PUB"),
        (Code.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": "g"}, b"", "%RETRY%g=SUB"),
        (Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "g"}, b"", "%RETRY%g=SUB"),
        (Code.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "g"}, b"", "orders=SUB"),
        (Code.LITE_PULL_MESSAGE, {"topic": "orders", "consumerGroup": "g"}, b"", "%RETRY%g=SUB"),
        (Code.QUERY_MESSAGE, {"topic": "orders"}, b"", "orders=SUB"),
        (Code.QUERY_CONSUME_QUEUE, {"topic": "orders"}, b"", "orders=SUB"),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "orders"}, b"", "orders=PUB"),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "orders"}, b"", "%RETRY%g=SUB"),
        (Code.HEART_BEAT, {}, HEARTBEAT, "%RETRY%g=SUB"),
        (Code.HEART_BEAT, {}, HEARTBEAT, "orders=SUB"),
        (Code.UNREGISTER_CLIENT, {"consumerGroup": "g"}, b"", "%RETRY%g=SUB"),
        (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, b"", "%RETRY%g=SUB"),
        (Code.UPDATE_CONSUMER_OFFSET, {"topic": "orders", "consumerGroup": "g"}, b"", "orders=SUB"),
        (
            Code.LOCK_BATCH_MQ,
            {},
            b'{"clientId":"c","consumerGroup":"g","mqSet":[]}',
            "%RETRY%g=SUB",
        ),
        (Code.RECALL_MESSAGE, {"topic": "orders"}, b"", "orders=PUB"),
    ],
)
def test_a_request_needs_its_permission(
    code: Code, fields: dict[str, str], body: bytes, needed: str
) -> None:
    """With every permission a request passes; without the needed one it is refused."""
    every = {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "PUB|SUB"}
    check(rules(**every), code, fields, body)
    name, _, permission = needed.partition("=")
    other = "SUB" if permission == "PUB" else "PUB"
    group = name.removeprefix("%RETRY%")
    held = {"topicPerms": [f"{name}={other}"]}
    if group != name:
        held = {"groupPerms": [f"{group}={other}"]}
    with pytest.raises(AclDenied, match="No default permission") as caught:
        check(rules(**every, **held), code, fields, body)
    assert group in str(caught.value)


def test_defaults_apply_to_names_that_an_account_does_not_list() -> None:
    """A topic of its own counts before the default."""
    found = rules(defaultTopicPerm="DENY", topicPerms=["orders=PUB"])
    check(found, Code.SEND_MESSAGE, {"topic": "orders"})
    with pytest.raises(AclDenied, match="No default permission for topic:other"):
        check(found, Code.SEND_MESSAGE, {"topic": "other"})


@pytest.mark.parametrize(
    "topic",
    [
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    ],
)
@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.QUERY_MESSAGE])
def test_defaults_do_not_open_topics_with_messages_of_all_others(topic: str, code: Code) -> None:
    """An account that is denied a topic would read its delayed and half messages there."""
    fields = {"topic": topic, "consumerGroup": "g"}
    every = {"defaultTopicPerm": "PUB|SUB", "defaultGroupPerm": "PUB|SUB"}
    with pytest.raises(AclDenied, match=f"No default permission for topic:{topic}"):
        check(rules(**every), code, fields)
    check(rules(**every, topicPerms=[f"{topic}=SUB"]), code, fields)


def test_an_administrator_without_own_topics_may_send_everything() -> None:
    """With topics of its own an administrator is checked like others."""
    check(rules(), Code.SEND_MESSAGE, {"topic": "orders"}, account=ADMIN)
    check(rules(), Code.UPDATE_AND_CREATE_TOPIC, {"topic": "orders"}, account=ADMIN)
    found = rules(admin=True, topicPerms=["orders=SUB"])
    with pytest.raises(AclDenied, match="No default permission for topic:orders"):
        check(found, Code.SEND_MESSAGE, {"topic": "orders"})


def test_where_consumers_stand_is_shown_to_those_who_may_consume() -> None:
    """The broker asks every consumer of the group for it."""
    code, asked = Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "billing"}
    check(rules(topicPerms=["orders=SUB"], groupPerms=["billing=SUB"]), code, asked)
    with pytest.raises(AclDenied, match="group:billing"):
        check(rules(topicPerms=["orders=SUB"]), code, asked)
    with pytest.raises(AclDenied, match="topic:orders"):
        check(rules(groupPerms=["billing=SUB"]), code, asked)


@pytest.mark.parametrize(
    "code",
    [
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.CLONE_GROUP_OFFSET,
        Code.UPDATE_AND_CREATE_ACL_CONFIG,
        Code.DELETE_ACL_CONFIG,
        Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    ],
)
def test_changes_need_an_administrator(code: Code) -> None:
    """The permissions of a topic do not suffice."""
    found = rules(defaultTopicPerm="PUB|SUB", defaultGroupPerm="PUB|SUB")
    with pytest.raises(AclDenied, match=f"Need admin permission for request code={int(code)}"):
        check(found, code, {})


def test_a_wrong_secret_is_refused() -> None:
    """So are an unknown account, a missing one, and a field changed after the signature."""
    found = rules(defaultTopicPerm="PUB")
    forged = Credentials(ALICE.access_key, "another-secret")
    with pytest.raises(AclDenied, match="Check signature failed for accessKey=alice-key"):
        check(found, Code.SEND_MESSAGE, {"topic": "orders"}, account=forged)
    with pytest.raises(AclDenied, match="No acl config for nobody"):
        check(found, Code.SEND_MESSAGE, {}, account=Credentials("nobody", "alice-secret"))
    with pytest.raises(AclDenied, match="No accessKey is configured"):
        found.authenticate("10.0.0.1", {"topic": "orders"}, b"")
    sent = {"topic": "orders", **signed(ALICE, {"topic": "orders"}, b"body")}
    found.authenticate("10.0.0.1", sent, b"body")
    for fields, body in (({**sent, "topic": "other"}, b"body"), (sent, b"other")):
        with pytest.raises(AclDenied, match="Check signature failed"):
            found.authenticate("10.0.0.1", fields, body)


def test_only_what_may_be_signed_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may have 16 MiB."""
    found, hashed = rules(defaultTopicPerm="PUB"), []

    def counted(secret_key: str, fields: Mapping[str, str], body: bytes = b"") -> str:
        hashed.append(body)
        return signature(secret_key, fields, body)

    monkeypatch.setattr(rules_module, "signature", counted)
    sent = {"topic": "orders", **signed(ALICE, {"topic": "orders"}, b"body")}
    proof = sent.pop("Signature")
    for changes, code in (
        ({}, "Check signature failed"),
        ({"Signature": ""}, "Check signature failed"),
        ({"Signature": proof[:27]}, "Check signature failed"),
        ({"Signature": proof + "="}, "Check signature failed"),
        ({"AccessKey": "nobody", "Signature": proof}, "No acl config for nobody"),
    ):
        with pytest.raises(AclDenied, match=code):
            found.authenticate("10.0.0.1", {**sent, **changes}, b"body")
    assert hashed == []
    marked = {**sent, "Signature": proof, "_UNIQUE_KEY_QUERY": "true"}
    with pytest.raises(AclDenied, match="Check signature failed"):
        found.authenticate("10.0.0.1", marked, b"body")
    assert len(hashed) == 1


def test_a_field_that_old_clients_add_unsigned() -> None:
    """Clients up to 4.9.3 sign a query by a unique key before they mark it so."""
    found = rules(defaultTopicPerm="SUB")
    sent = {"topic": "orders", **signed(ALICE, {"topic": "orders"})}
    assert found.authenticate("10.0.0.1", {**sent, "_UNIQUE_KEY_QUERY": "true"}, b"")
    with pytest.raises(AclDenied, match="Check signature failed"):
        found.authenticate("10.0.0.1", {**sent, "other": "true"}, b"")


def test_white_lists() -> None:
    """The global one needs no account; that of an account needs its key, but no signature."""
    found, _ = parse_rules(
        {
            "acl.yml": {
                "globalWhiteRemoteAddresses": ["10.0.1.*"],
                "accounts": [
                    {
                        "accessKey": "alice-key",
                        "secretKey": "alice-secret",
                        "whiteRemoteAddress": "10.0.2.*",
                    }
                ],
            }
        }
    )
    assert found.authenticate("10.0.1.7", {}, b"") is None
    listed = found.authenticate("10.0.2.7", {"AccessKey": "alice-key"}, b"")
    assert listed is not None
    listed.check(Code.SEND_MESSAGE, [("orders", Permission.PUB)], needs_admin=False)
    with pytest.raises(AclDenied, match="Need admin permission"):
        listed.check(Code.UPDATE_AND_CREATE_ACL_CONFIG, [], needs_admin=True)
    with pytest.raises(AclDenied, match="No accessKey"):
        found.authenticate("10.0.2.7", {}, b"")
    with pytest.raises(AclDenied, match="Check signature failed"):
        found.authenticate("10.0.3.7", {"AccessKey": "alice-key"}, b"")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"accessKey": "short", "secretKey": "12345678"}, "The accessKey=short cannot be null"),
        ({"accessKey": "alice-key", "secretKey": "hidden"}, "secretKey of accessKey=alice-key"),
        ({"accessKey": "alice-key", "secretKey": "12345678", "topicPerms": ["a"]}, "topicPerms"),
        ({"accessKey": "alice-key", "secretKey": "12345678", "topicPerms": "a=PUB"}, "a list"),
        ({"accessKey": "alice-key", "secretKey": "12345678", "whiteRemoteAddress": "x"}, "'x'"),
    ],
)
def test_an_invalid_account_says_what_is_wrong(values: dict[str, Any], problem: str) -> None:
    """The error names the field; a secret is in no error and in no repr."""
    with pytest.raises(AclDenied) as caught:
        parse_account(values)
    assert problem in str(caught.value)
    assert "hidden" not in str(caught.value)
    good = parse_account({"accessKey": "alice-key", "secretKey": "secret-of-alice"})
    assert "secret-of-alice" not in repr(good)


def test_an_answer_repeats_only_the_start_of_a_name() -> None:
    """Names come from clients, of any length."""
    with pytest.raises(AclDenied) as caught:
        check(rules(), Code.SEND_MESSAGE, {"topic": "x" * 1_000_000})
    assert len(str(caught.value)) < 200


def test_keys_that_cannot_be_encoded_are_refused() -> None:
    """The error has neither of them."""
    for values in ({"secretKey": "\ud800-secret"}, {"accessKey": "\ud800-access"}):
        entry = {"accessKey": "alice-key", "secretKey": "alice-secret", **values}
        with pytest.raises(AclDenied, match="characters that UTF-8 cannot encode") as caught:
            parse_account(entry)
        assert "\ud800" not in str(caught.value)


def test_an_account_counts_in_the_first_file_that_has_it() -> None:
    """The other file is named in a warning."""
    entry = {"accessKey": "alice-key", "secretKey": "first-secret"}
    found, warnings = parse_rules(
        {
            "a.yml": {"accounts": [entry]},
            "b.yml": {"accounts": [{**entry, "secretKey": "second-secret"}]},
        }
    )
    assert found.accounts["alice-key"].secret_key == "first-secret"
    assert warnings == ["accessKey alice-key is repeated in b.yml"]


#: Codes of brokers that any account may send: they show the state of a broker to tools, or say
#: nothing of topics and groups.
ANY_ACCOUNT = {
    Code.QUERY_CONSUMER_OFFSET,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_TOPIC_CONFIG,
    Code.GET_BROKER_CONFIG,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.SEARCH_OFFSET_BY_TIMESTAMP,
    Code.GET_MAX_OFFSET,
    Code.GET_MIN_OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME,
    Code.VIEW_MESSAGE_BY_ID,
    Code.CHECK_CLIENT_CONFIG,
    Code.END_TRANSACTION,
    Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_TOPIC_STATS_INFO,
    Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_ALL_PRODUCER_INFO,
    Code.GET_CONSUME_STATS,
    Code.GET_BROKER_CONSUME_STATS,
    Code.VIEW_BROKER_STATS_DATA,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.QUERY_CORRECTION_OFFSET,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
}


def test_what_each_code_of_a_broker_needs_is_decided() -> None:
    """A new code needs permissions, an administrator, or a line above."""
    codes = {code for code, spec in REGISTRY.items() if Side.BROKER in spec.side}
    decided = [*_READERS, *(code for code in codes if needs_admin(code)), *ANY_ACCOUNT]
    assert sorted(decided) == sorted(codes)
