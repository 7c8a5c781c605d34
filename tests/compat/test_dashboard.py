"""The web page shows brokers of Java as it shows ours."""

import asyncio
from pathlib import Path

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.message.model import Message
from tests.client.shared_broker import fresh_name
from tests.compat import anchor
from tests.compat.conftest import SharedPeers, Target
from tests.dashboard.page import running_page

_UNREAD = "did not tell its topics"


async def test_its_pages_show_the_cluster(target: Target) -> None:
    topic, group = fresh_name("seen"), fresh_name("seers")
    async with Client(target.namesrv) as client:
        await Admin(client.session).create_topic(topic, queues=2)
        for number in range(3):
            await client.send(Message(topic, b'{"seen": true}', keys=(f"key-{number}",)))
        async with client.subscribe(topic, group=group, start="first") as subscription:
            async for message in subscription:
                async with message.processing():
                    break
        async with running_page(target.namesrv, allow_changes=True) as page:
            for path, words in {
                "/": (target.broker, target.broker_name, "master"),
                f"/topics?q={topic}": (topic,),
                f"/topics/{topic}": (target.broker_name, "read and write"),
                f"/groups?q={group}": (group,),
                f"/groups/{group}": ("Consumed to", topic),
                f"/groups/{group}/members": (group,),
                f"/groups/{group}/reset?topic={topic}&to=first": ("nothing has changed yet",),
                f"/messages?topic={topic}": ("key-2",),
                f"/messages?topic={topic}&by=time": ("key-0",),
                "/dead": ("Dead letters",),
                "/producers": ("Producers",),
                "/waiting": ("Open transactions",),
                "/store": ("Commit log", target.broker),
                "/settings?q=fileReservedTime": ("fileReservedTime",),
                "/accounts": (
                    "users of RocketMQ 5" if target.name == "java5" else "Access control is off",
                ),
            }.items():
                # A broker that missed a question under load is asked again in the next round.
                async with asyncio.timeout(30):
                    while (answer := await page.get(path)).status == 200 and _UNREAD in answer.text:
                        await asyncio.sleep(0.2)
                assert answer.status == 200, (path, answer.text)
                for word in words:
                    assert word in answer.text, (path, answer.text)
            preview = await page.get(f"/groups/{group}/reset?topic={topic}&to=last")
            form = {"topic": topic, "to": "last", "confirmed": group}
            done = await page.post(f"/groups/{group}/reset", form | {"change_token": preview.token})
            shown = await page.get(done.headers["location"])
            assert "The offsets were reset in 2 queues" in shown.text
            gone = {"change_token": preview.token, "confirmed": topic}
            assert (await page.post(f"/topics/{topic}/delete", gone)).status == 303


async def test_its_pages_change_accounts(peers: SharedPeers, tmp_path: Path) -> None:
    peers.stop_java()
    rules = tmp_path / "conf" / "plain_acl.yml"
    rules.parent.mkdir()
    rules.write_text("globalWhiteRemoteAddresses:\n- 127.0.0.*\naccounts: []\n")
    java = anchor.JavaCluster(anchor.fetch_jars(), tmp_path, {"aclEnable": "true"})
    form = {
        "key": "shop-account", "secret": "shop-secret", "default_topic": "DENY",
        "default_group": "SUB", "topics": "orders=PUB|SUB", "groups": "billing=SUB",
    }  # fmt: skip
    with java.until_killed():
        async with running_page(java.namesrv, allow_changes=True) as page:
            token = (await page.get("/new-account")).token
            made = await page.post("/new-account", form | {"change_token": token})
            assert made.status == 303, made.text
            path = "/accounts/shop-account"
            async with asyncio.timeout(30):
                while (shown := await page.get(path)).status != 200:
                    await asyncio.sleep(0.2)
            assert "send and consume" in shown.text
            listed = await page.get("/accounts")
            assert "127.0.0.*" in listed.text
            for answer in (shown, listed, await page.get(f"{path}/edit")):
                assert "shop-secret" not in answer.text, "Java's broker tells secrets"
            gone = {"change_token": token, "confirmed": "shop-account"}
            assert (await page.post(f"{path}/delete", gone)).status == 303
