"""Dead letters are listed and sent again once, on a real CometMQ broker."""

from __future__ import annotations

import asyncio

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.deadletters import (
    DeadLetter,
    DeadLetters,
    Destination,
    ResendStatus,
    dead_letter,
    plan_resend,
)
from cometmq.client.client import Client
from cometmq.core.errors import CometError, NotFound
from cometmq.message.model import StoredMessage
from tests.admin.dead import die
from tests.client.shared_broker import fresh_name, fresh_topic


@pytest.fixture
def dead(admin: Admin) -> DeadLetters:
    return DeadLetters(admin)


async def letters_of(dead: DeadLetters, group: str) -> list[DeadLetter]:
    return [letter async for letter in dead.browse(group)]


async def test_letters_are_listed_and_sent_to_the_original_topic_once(
    client: Client, dead: DeadLetters
) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    sent = await die(client, topic, group, [b"one", b"two"])
    listed = {each.group: each for each in await dead.groups()}
    assert (listed[group].letters, listed[group].is_readable) == (2, True)
    assert listed[group].newest_ms > 0
    letters = await letters_of(dead, group)
    assert [letter.message.body for letter in letters] == [b"one", b"two"]
    assert {letter.origin for letter in letters} == {topic}
    assert letters[0].message.message_id == sent[0].message_id
    assert letters[0].origin_message_id
    plans = [await dead.resend(letter, dry_run=True) for letter in letters]
    assert [plan.outcome for plan in plans] == [ResendStatus.PLANNED] * 2
    done = await dead.resend(letters[0])
    assert (done.outcome, done.topic, done.message_id) == (
        ResendStatus.SENT,
        topic,
        plans[0].message_id,
    )
    async with asyncio.timeout(60):
        while (await dead.resend(letters[0], dry_run=True)).outcome is not ResendStatus.REPEATED:
            pass  # until the index has it
    assert (await dead.resend(letters[0])).outcome is ResendStatus.REPEATED
    assert (await dead.resend(letters[0], again=True)).outcome is ResendStatus.SENT
    found = [message async for message in dead._messages.browse(topic)]
    assert [message.body for message in found] == [b"one", b"two", b"one", b"one"]
    copy = found[2]
    assert (copy.tag, copy.keys, copy.properties["p"]) == ("t", ("k",), "v")
    assert copy.reconsume_times == 0
    assert "RETRY_TOPIC" not in copy.properties
    assert copy.properties["ORIGIN_MESSAGE_ID"] == letters[0].origin_message_id


async def test_a_letter_goes_to_its_group_alone(client: Client, dead: DeadLetters) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    await die(client, topic, group, [b"one"])
    (letter,) = await letters_of(dead, group)
    done = await dead.resend(letter, Destination.RETRY)
    assert (done.outcome, done.topic) == (ResendStatus.SENT, f"%RETRY%{group}")
    assert done.message_id == letter.message.message_id
    async with asyncio.timeout(60), client.subscribe(topic, group=group) as subscription:
        message = await anext(subscription)
        async with message.processing():
            assert (message.topic, message.body, message.reconsume_times) == (topic, b"one", 0)
    again = await dead.resend(letter, Destination.RETRY)
    assert again.outcome is ResendStatus.REPEATED


async def test_a_topic_that_is_gone_is_a_failure(
    client: Client, admin: Admin, dead: DeadLetters
) -> None:
    topic, group = await fresh_topic(client, 1), fresh_name("g")
    await die(client, topic, group, [b"one"])
    (letter,) = await letters_of(dead, group)
    await admin.create_topic(topic, queues=1, perm=4)
    done = await dead.resend(letter)
    assert done.outcome is ResendStatus.FAILED
    assert "none of its queues is writable" in done.problem


async def test_groups_without_letters(client: Client, admin: Admin, dead: DeadLetters) -> None:
    group = fresh_name("g")
    with pytest.raises(NotFound, match=f"group '{group}': no broker knows it"):
        await letters_of(dead, group)
    topic = await fresh_topic(client, 1)
    async with client.subscribe(topic, group=group):
        assert await letters_of(dead, group) == []
    await admin.create_topic(f"%DLQ%{group}", queues=1, perm=2)
    with pytest.raises(CometError, match=r"write-only on .*give it permission 6"):
        await letters_of(dead, group)
    assert not next(each for each in await dead.groups() if each.group == group).is_readable


def test_what_is_sent_again() -> None:
    properties = {"UNIQ_KEY": "u", "TAGS": "t", "p": "v", "DELAY": "3", "WAIT": "false"}
    bare = StoredMessage(
        "%DLQ%g", 0, 5, 0, b"", properties, 0, 0, 0, bytes(8), 9, bytes(8), 3, 0, 0, "b"
    )
    letter = dead_letter("g", bare)
    assert (letter.origin, letter.retries, letter.died_ms) == ("", 3, 9)
    for destination in Destination:
        topic, kept = plan_resend(letter, destination)
        assert topic == ""
        assert (kept["TAGS"], kept["p"]) == ("t", "v")
        assert not {"DELAY", "WAIT", "RETRY_TOPIC"} & set(kept)
    properties["RETRY_TOPIC"] = "o"
    letter = dead_letter("g", bare)
    topic, kept = plan_resend(letter, Destination.RETRY)
    assert (topic, kept["RETRY_TOPIC"], kept["UNIQ_KEY"]) == ("%RETRY%g", "o", "u")
    topic, kept = plan_resend(letter, Destination.ORIGIN)
    # Of spark/jobs/dlq.py: sha2("%DLQ%g|b|0|5", 256).
    assert (topic, kept["UNIQ_KEY"][:2], len(kept["UNIQ_KEY"])) == ("o", "7F", 32)
