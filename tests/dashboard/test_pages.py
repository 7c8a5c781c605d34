"""Each view of a real broker with messages and groups, and each change."""

import asyncio
import gzip
import html
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.messages import Messages
from cometmq.broker.topics.registration import BrokerPlace
from cometmq.client.client import Client
from cometmq.dashboard.pages import deadletters, groups
from cometmq.dashboard.rendering import PAGE_ROWS
from cometmq.dashboard.schemas import load_schemas
from cometmq.message.model import Message
from cometmq.message.names import DLQ_PREFIX
from cometmq.protocol.bodies import SubscriptionGroupConfig
from cometmq.testing.cluster import Cluster
from tests.broker.topics.test_registration import Broker as Registered
from tests.dashboard.page import Answer, Page, running_page

BODY = b'{"order": 1, "note": "<script>alert(1)</script>"}'


@asynccontextmanager
async def stocked(
    cluster: Cluster, *, allow_changes: bool = True
) -> AsyncIterator[tuple[Page, Admin]]:
    """A page, and a cluster with a topic, 20 messages, and a group that consumed five of them."""
    async with Client(cluster.namesrv) as client:
        admin = Admin(client.session)
        await admin.create_topic("orders", queues=2)
        for number in range(20):
            sent = Message("orders", BODY, tag="paid", keys=(f"order-{number}",))
            await client.send(sent)
        async with client.subscribe("orders", group="billing", start="first") as subscription:
            taken = 0
            async for message in subscription:
                async with message.processing():
                    taken += 1
                if taken == 5:
                    break
        async with running_page(cluster.namesrv, allow_changes=allow_changes) as page:
            yield page, admin


def place_in(text: str) -> str:
    """The query of the first message that a page links to."""
    found = re.search(r'/messages/view\?([^"]+)', text)
    assert found is not None, text
    return found[1].replace("&amp;", "&")


async def test_every_view_is_there(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster, allow_changes=False) as (page, _):
        for path, words in {
            "/topics": ("orders", "20"),
            "/topics?q=nothing": ("No topic matches",),
            "/topics?kind=retry": ("%RETRY%billing",),
            "/topics?kind=system": ("TBW102",),
            "/topics/orders": ("billing", "read and write", "h"),
            "/groups": ("billing", "Waiting"),
            "/groups/billing": ("orders", "Consumed to"),
            "/groups/billing/members": ("No member is connected",),
            "/groups/billing/settings": ("Retries before",),
            "/groups/billing/reset?topic=orders&to=first": ("Preview", "--allow-changes"),
            "/dead": ("No group has dead letters",),
            "/producers": ("producer",),
            "/waiting": ("No transaction is open",),
            "/store": ("Commit log", "putTps"),
            "/store?q=putTps": ("1 fact",),
            "/settings": ("mappedFileSizeCommitLog",),
            "/settings?q=flushDiskType": ("ASYNC_FLUSH",),
        }.items():
            answer = await page.get(path)
            assert answer.status == 200, path
            for word in words:
                assert word in answer.text, path
        for path in ("/topics/missing", "/groups/missing", "/messages/view?topic=orders&id=AB"):
            assert (await page.get(path)).status == 404, path
        assert (await page.get("/nothing")).status == 404


async def test_a_master_that_does_not_tell_is_named(cometmq_cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
    registered = Registered(cometmq_cluster.namesrv)
    try:
        place = BrokerPlace("DefaultCluster", "gone", 0, gone, gone)
        await registered.registration.start(place, registered)
        async with Client(cometmq_cluster.namesrv) as client:
            admin = Admin(client.session)
            for name in ("kept", "t"):
                await admin.create_topic(name, brokers=("broker-a",))
            await admin.update_group(SubscriptionGroupConfig("keepers"), brokers=("broker-a",))
        async with running_page(cometmq_cluster.namesrv, allow_changes=True) as page:
            for path, words in {
                "/topics": ("kept", "gone did not tell its topics"),
                "/topics/kept": ("read and write", "gone did not tell its topics"),
                "/topics/t": ("read and write", "gone did not tell its topics"),
                "/topics/t/delete": ("gone did not tell its queues",),
                "/producers": ("gone did not tell its producers",),
                "/dead": ("gone did not tell its dead letters",),
                "/groups": ("keepers", "gone did not tell its groups"),
                "/groups/keepers/settings": ("Retries before", "gone did not tell its groups"),
            }.items():
                answer = await page.get(path)
                assert answer.status == 200, answer.text
                for word in words:
                    assert word in answer.text, (path, answer.text)
            missing = await page.get("/topics/missing/edit")
            assert missing.status == 404
            assert "gone did not tell" in missing.text
    finally:
        await registered.close()


async def test_messages_are_found_and_shown_escaped(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, _):
        for query in (
            "by=latest",
            "by=key&value=order-3",
            "by=time",
            "by=time&value=2020-01-01T00:00",
        ):
            answer = await page.get(f"/messages?topic=orders&{query}")
            assert "order-3" in answer.text, query
            assert "<script>alert" not in answer.text
        none = await page.get("/messages?topic=orders&by=key&value=order-99")
        assert "No message was found" in none.text
        bad = await page.get("/messages?topic=orders&by=time&value=yesterday")
        assert "is not a time" in bad.text
        place = place_in((await page.get("/messages?topic=orders&by=key&value=order-3")).text)
        whole = (await page.get(f"/messages/view?{place}")).text
        assert "order-3" in whole
        assert "stored" in whole
        assert "billing" in whole
        assert "&lt;script&gt;" in whole
        assert "7b 22 6f 72" in (await page.get(f"/messages/view?{place}&form=hex")).text
        body = await page.get(f"/messages/body?{place}")
        assert body.text.encode() == BODY
        assert body.headers["content-disposition"].startswith("attachment")


async def test_no_message_of_a_full_millisecond_is_skipped(cometmq_cluster: Cluster) -> None:
    async with Client(cometmq_cluster.namesrv) as client:
        admin = Admin(client.session)
        await admin.create_topic("many", queues=2)
        for _ in range(2):
            # One batch has one time of storing.
            await client.send_many(Message("many", b"%d" % at, tag="odd") for at in range(600))
        stored = [message async for message in Messages(admin).browse("many")]
        in_one = max(Counter(message.store_ms for message in stored).values())
        assert in_one >= 600
        places = {f"{each.broker_name}/{each.queue_id}@{each.queue_offset}" for each in stored}
        async with running_page(cometmq_cluster.namesrv) as page:
            for query in ("", f"&value={stored[0].store_ms}&filter=odd"):
                found: list[str] = []
                path = f"/messages?topic=many&by=time{query}"
                while path:
                    text = (await page.get(path)).text
                    found += re.findall(r'class="mono" href="[^"]+">([^<]+)</a>', text)
                    later = re.search(r'rel="next" href="([^"]+)"', text)
                    path = html.unescape(later[1]) if later else ""
                assert len(found) == len(places) == 1_200
                assert set(found) == places
            for wrong in ("x", "broker-a.0.", ".0.1", "broker-a.x.1"):
                text = (await page.get(f"/messages?topic=many&by=time&after={wrong}")).text
                assert "is not a place" in text


async def test_a_topic_is_made_changed_and_deleted(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, admin):
        token = (await page.get("/new-topic")).token
        given = {"change_token": token, "read_queues": "4", "write_queues": "4", "perm": "6"}
        made = await page.post("/new-topic", given | {"name": "new"})
        assert made.status == 303
        assert "The topic was created" in (await page.get(made.headers["location"])).text
        assert len(await admin.topic_stats("new")) == 4
        assert (await page.post("/new-topic", given | {"name": "new"})).status == 400
        assert (await page.post("/new-topic", given | {"name": "a b"})).status == 400
        few = given | {"read_queues": "0"}
        assert (await page.post("/topics/new/edit", few)).status == 400
        more = given | {"read_queues": "6", "write_queues": "6"}
        assert (await page.post("/topics/new/edit", more)).status == 303
        assert len(await admin.topic_stats("new")) == 6
        delete = {"change_token": token, "confirmed": "other"}
        assert (await page.post("/topics/new/delete", delete)).status == 400
        assert "new" in await admin.list_topics()
        assert "0 messages" in (await page.get("/topics/new/delete")).text
        assert (await page.post("/topics/new/delete", delete | {"confirmed": "new"})).status == 303
        assert "new" not in await admin.list_topics()


async def test_what_the_form_of_a_topic_does_not_have_stays(cometmq_cluster: Cluster) -> None:
    async with (
        Client(cometmq_cluster.namesrv) as client,
        running_page(cometmq_cluster.namesrv, allow_changes=True) as page,
    ):
        admin = Admin(client.session)
        for name, perm in (("closed", 0), ("inherited", 7)):
            await admin.create_topic(name, queues=1, perm=perm, filter_type="MULTI_TAG", sys_flag=2)
            form = await page.get(f"/topics/{name}/edit")
            assert f'<option value="{perm & 6}" selected>' in form.text
            given = {"change_token": form.token, "read_queues": "4", "write_queues": "4"}
            sent = given | {"perm": str(perm & 6)}
            assert (await page.post(f"/topics/{name}/edit", sent)).status == 303
            found = await admin.topic_config(cometmq_cluster.broker, name)
            assert found is not None
            assert (found.read_queue_nums, found.perm) == (4, perm)
            assert (found.topic_filter_type, found.topic_sys_flag) == ("MULTI_TAG", 2)


async def test_a_read_only_page_changes_nothing(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster, allow_changes=False) as (page, admin):
        assert "New topic" not in (await page.get("/topics")).text
        assert "--allow-changes" in (await page.get("/new-topic")).text
        viewer_token = "0" * 64
        refused = await page.post("/topics/orders/delete", {"change_token": viewer_token})
        assert refused.status == 403
        assert "orders" in await admin.list_topics()


async def shown_once(page: Page, answer: Answer, outcome: str) -> None:
    """Check that a browser that reloads the page after a change asks only for the page."""
    assert answer.status == 303, answer.text
    assert outcome in (await page.get(answer.headers["location"])).text
    again = await page.get(answer.headers["location"])
    assert again.status == 200
    assert outcome not in again.text


async def test_a_reset_is_shown_before_it_is_carried_out(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, admin):
        before = await admin.group_offsets("billing", "orders")
        preview = await page.get("/groups/billing/reset?topic=orders&to=last")
        assert "nothing has changed yet" in preview.text
        assert await admin.group_offsets("billing", "orders") == before
        form = {"change_token": preview.token, "topic": "orders", "to": "last", "confirmed": "x"}
        assert (await page.post("/groups/billing/reset", form)).status == 400
        assert await admin.group_offsets("billing", "orders") == before
        done = await page.post("/groups/billing/reset", form | {"confirmed": "billing"})
        await shown_once(page, done, "The offsets were reset in 2 queues")
        ends = await admin.topic_stats("orders")
        found = await admin.group_offsets("billing", "orders")
        assert {queue: at for queue, at in found.items()} == {
            queue: each.max_offset for queue, each in ends.items()
        }
        form = {"change_token": preview.token, "confirmed": "billing"}
        assert (await page.post("/groups/billing/delete", form)).status == 303
        assert not await admin.knows_group("billing")


async def test_a_message_is_sent_again(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, admin):
        place = place_in((await page.get("/messages?topic=orders&by=key&value=order-3")).text)
        asked = await page.get(f"/messages/resend?{place}")
        done = await page.post(
            f"/messages/resend?{place}", {"change_token": asked.token, "target": "orders"}
        )
        await shown_once(page, done, "A copy was stored")
        assert len(await admin.messages_by_key("orders", "order-3")) == 2


async def test_dead_letters_are_sent_again_once(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, admin):
        await admin.create_topic(DLQ_PREFIX + "billing", queues=1)
        properties = {"DLQ_ORIGIN_TOPIC": "orders", "DLQ_ORIGIN_MESSAGE_ID": "0A"}
        first = (await admin.messages_by_key("orders", "order-7"))[0]
        copied = dict(first.properties) | properties
        await Messages(admin).store(first, copied, DLQ_PREFIX + "billing")
        assert "billing" in (await page.get("/dead")).text
        shown = await page.get("/dead/billing")
        letter = re.search(r'name="letter" value="([^"]+)"', shown.text)
        assert letter is not None, shown.text
        form = {"change_token": shown.token, "letter": [letter[1]], "destination": "origin"}
        await shown_once(page, await page.post("/dead/billing", form), ": sent to orders")
        assert len(await admin.messages_by_key("orders", "order-7")) == 2
        await shown_once(page, await page.post("/dead/billing", form), ": repeated")
        assert (await page.post("/dead/billing", form | {"letter": []})).status == 400
        (line,) = (await page.get("/dead/billing/export")).text.splitlines()
        assert (await page.get("/dead/nosuch/export")).status == 404
        assert json.loads(line)["body"] == BODY.decode()


async def test_letters_of_one_millisecond_are_on_several_pages(
    cometmq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "PAGE_ROWS", 3)
    topic, count = DLQ_PREFIX + "billing", 40
    async with (
        Client(cometmq_cluster.namesrv) as client,
        running_page(cometmq_cluster.namesrv, allow_changes=True) as page,
    ):
        await Admin(client.session).create_topic(topic, queues=1)
        await asyncio.gather(*(client.send(topic, b"x") for _ in range(count)))
        address, places = "/dead/billing", list[str]()
        while address:
            text = (await page.get(address)).text
            places += re.findall(r'name="letter" value="([^"]+)"', text)
            later = re.search(r'rel="next" href="([^"]+)"', text)
            assert len(places) <= count, "letters are shown again"
            address = later[1].replace("&amp;", "&") if later else ""
        assert len(set(places)) == len(places) == count


async def test_a_body_is_shown_decoded(cometmq_cluster: Cluster) -> None:
    async with stocked(cometmq_cluster) as (page, _), Client(cometmq_cluster.namesrv) as client:
        body = gzip.compress(b"\x81\xa5order\xa7<b>A-17")
        sent = await client.send("orders", body)
        place = f"topic=orders&broker={sent.queue.broker_name}&queue={sent.queue.queue_id}"
        text = (await page.get(f"/messages/view?{place}&offset={sent.queue_offset}")).text
        assert '<pre class="gzip">' in text
        assert "&#34;order&#34;: &#34;&lt;b&gt;A-17&#34;" in text


async def test_a_body_is_shown_by_the_schema_of_its_topic(
    cometmq_cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "orders.avsc").write_text(
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
    )
    schemas = load_schemas(tmp_path)
    async with (
        Client(cometmq_cluster.namesrv) as client,
        running_page(cometmq_cluster.namesrv, schemas=schemas) as page,
    ):
        await Admin(client.session).create_topic("orders", queues=1)
        sent = await client.send("orders", b"\x0a<A17>")
        await client.send("orders", b"\x0a<A1")
        place = f"topic=orders&broker={sent.queue.broker_name}&queue=0"
        fits = (await page.get(f"/messages/view?{place}&offset=0")).text
        assert '<pre class="avro">' in fits
        assert "&#34;id&#34;: &#34;&lt;A17&gt;&#34;" in fits
        assert "form=text" in fits
        cut = (await page.get(f"/messages/view?{place}&offset=1")).text
        assert '<pre class="text">' in cut
        assert "does not have the schema of its topic (avro): it ends within a value" in cut


async def test_a_file_has_all_dead_letters(cometmq_cluster: Cluster) -> None:
    count = 10_050
    async with (
        Client(cometmq_cluster.namesrv) as client,
        running_page(cometmq_cluster.namesrv) as page,
    ):
        topic = DLQ_PREFIX + "billing"
        await Admin(client.session).create_topic(topic, queues=1)
        for _ in range(count // 150):
            await asyncio.gather(*(client.send(topic, b"x") for _ in range(150)))
        lines = (await page.get("/dead/billing/export")).text.splitlines()
        assert len(lines) == count


async def test_long_lists_have_pages_and_a_search(cometmq_cluster: Cluster) -> None:
    async with Client(cometmq_cluster.namesrv) as client:
        admin = Admin(client.session)
        names = [f"many-{number:03}" for number in range(PAGE_ROWS + 5)]
        await asyncio.gather(*(admin.create_topic(name, queues=1) for name in names))
        async with running_page(cometmq_cluster.namesrv) as page:
            first = (await page.get("/topics?q=MANY")).text
            assert f"{PAGE_ROWS + 5} topics" in first
            assert "many-000" in first
            assert "many-054" not in first
            assert "page=2" in first
            assert "many-054" in (await page.get("/topics?q=many&page=2")).text
            assert "many-054" in (await page.get("/topics?q=many&page=99999999999")).text
            one = (await page.get("/topics?q=many-017", x_fragment="1")).text
            assert "many-017" in one
            assert "many-018" not in one


@pytest.mark.parametrize("name", ["%RETRY%billing", "a|b", "x/y", "<b>", "..", "a b", "ü"])
async def test_odd_names_reach_no_other_page(cometmq_session_cluster: Cluster, name: str) -> None:
    async with running_page(cometmq_session_cluster.namesrv) as page:
        answer = await page.get(f"/topics/{quote(name, safe='')}")
        assert answer.status == 404
        assert "<b>" not in answer.text.replace("<b>CometMQ", "")


async def test_who_holds_which_queue(
    cometmq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "_STATES_WAIT_S", 20)
    async with stocked(cometmq_cluster) as (page, _), Client(cometmq_cluster.namesrv) as client:
        subscription = client.subscribe("orders", group="held", start="first")
        message = await anext(aiter(subscription))
        async with message.processing():
            shown = await page.get("/groups/held/members")
            assert client.client_id in shown.text
            assert client.client_id in (await page.get("/groups/held")).text
            assert "1" in (await page.get("/groups?q=held")).text
