"""The view of accounts: who sees them, what they may do, and changes that brokers then obey."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cometmq.admin.api import Admin
from cometmq.admin.servers import Servers
from cometmq.broker.config import load
from cometmq.cli.node import running_broker
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.core.errors import BrokerRefused
from cometmq.net.client import Remoting
from cometmq.protocol.acl import Credentials
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Response
from cometmq.testing.cluster import SMALL_FILES, Cluster, running_cluster
from tests.dashboard.page import Page, running_page
from tests.dashboard.test_accounts import ADMIN, READER, written_accounts

NEW = {
    "key": "shop-account", "secret": "shop-secret", "default_topic": "DENY",
    "default_group": "DENY", "white_address": "", "topics": "orders=PUB|SUB\nbills=SUB",
    "groups": "billing=SUB",
}  # fmt: skip


def settings(home: Path) -> dict[str, str | bool]:
    return {"acl_enable": True, "rocketmq_home": str(written_accounts(home, '"10.9.8.*"'))}


async def change(page: Page, path: str, **fields: str) -> tuple[int, str]:
    """Send the form of a page; return status and text of the answer."""
    token = (await page.get(path)).token
    answer = await page.post(path, {"change_token": token, **fields})
    return answer.status, answer.text


async def may_send(namesrv: str, topic: str, secret: str = NEW["secret"]) -> bool:
    """Whether the new account may send to a topic."""
    credentials = Credentials(NEW["key"], secret)
    async with Client(namesrv, credentials=credentials) as client:
        try:
            await client.send(topic, b"x")
        except BrokerRefused:
            return False
    return True


async def test_accounts_are_shown_without_secrets(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, **settings(tmp_path / "home")) as cluster,
        running_page(cluster.namesrv) as page,
    ):
        await page.get("/")
        assert (await page.get("/accounts")).status == 303, "without a login"
        await page.post("/login", ADMIN)
        text = (await page.get("/accounts")).text
        for word in (*map(str, (ADMIN["access_key"], READER["access_key"])), "10.9.8.*"):
            assert word in text
        assert ADMIN["secret_key"] not in text
        assert "New account" not in text, "this page only shows"
        assert READER["access_key"] not in (await page.get("/accounts?q=operator")).text
        assert "everything" in (await page.get(f"/accounts/{ADMIN['access_key']}")).text
        one = (await page.get(f"/accounts/{READER['access_key']}")).text
        assert "everything" not in one
        assert "no administrator" in one
        assert "consume" in one
        assert "Edit the account" not in one
        assert (await page.get("/accounts/nobody-here")).status == 404
        form = (await page.get(f"/accounts/{READER['access_key']}/edit")).text
        assert "--allow-changes" in form
        token = re.search(r'name="change_token" value="([0-9a-f]+)"', one)
        assert token is not None
        sent = {"change_token": token[1], "confirmed": READER["access_key"]}
        refused = await page.post(f"/accounts/{READER['access_key']}/delete", sent)
        assert refused.status == 403


async def test_only_an_administrator_sees_accounts(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, **settings(tmp_path / "home")) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        await page.post("/login", READER)
        text = (await page.get("/accounts")).text
        assert "only an administrator may see them" in text
        assert ADMIN["access_key"] not in text
        status, text = await change(page, "/new-account", **NEW)
        assert status == 502
        assert "not on all brokers" in text


async def test_an_account_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, **settings(tmp_path / "home")) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        operator = Credentials(ADMIN["access_key"], ADMIN["secret_key"])
        async with Client(cluster.namesrv, credentials=operator) as client:
            for topic in ("orders", "bills"):
                await Admin(client.session).create_topic(topic)
        await page.post("/login", ADMIN)
        assert (await change(page, "/new-account", **NEW))[0] == 303
        assert await may_send(cluster.namesrv, "orders")
        assert not await may_send(cluster.namesrv, "bills")

        path = f"/accounts/{NEW['key']}"
        shown = (await page.get(path)).text
        assert "send and consume" in shown
        assert "billing" in shown
        assert NEW["secret"] not in shown
        edited = NEW | {"secret": "", "topics": "orders=SUB\nbills=PUB"}
        edited.pop("key")
        assert (await change(page, f"{path}/edit", **edited))[0] == 303
        assert not await may_send(cluster.namesrv, "orders")
        assert await may_send(cluster.namesrv, "bills"), "the secret is as it was"
        assert (await change(page, f"{path}/edit", **edited | {"secret": "other-secret"}))[0] == 303
        assert not await may_send(cluster.namesrv, "bills")
        assert await may_send(cluster.namesrv, "bills", "other-secret")

        assert (await change(page, f"{path}/delete", confirmed="another"))[0] == 400
        assert (await change(page, f"{path}/delete", confirmed=NEW["key"]))[0] == 303
        assert not await may_send(cluster.namesrv, "bills", "other-secret")
        assert (await page.get(path)).status == 404


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"key": "short"}, "an access key has at least 7"),
        ({"key": READER["access_key"]}, "there is an account"),
        ({"secret": "short"}, "a secret key has at least 7"),
        ({"default_topic": "ALL"}, "is not a permission"),
        ({"topics": "orders"}, "is not a permission for one of the topics"),
        ({"groups": "a,b=SUB"}, "is not a permission for one of the groups"),
    ],
)
async def test_a_form_that_cannot_be_used_changes_nothing(
    tmp_path: Path, fields: dict[str, str], problem: str
) -> None:
    async with (
        running_cluster(tmp_path, **settings(tmp_path / "home")) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        await page.post("/login", ADMIN)
        status, text = await change(page, "/new-account", **NEW | fields)
        assert (status, problem in text) == (400, True), text
        assert NEW["key"] not in (await page.get("/accounts")).text


@pytest.mark.parametrize(
    ("field", "problem"),
    [("topics", "set it to DENY"), ("groups", "set it to DENY"), ("white_address", "create it")],
)
async def test_what_the_protocol_cannot_empty_is_refused(
    tmp_path: Path, field: str, problem: str
) -> None:
    async with (
        running_cluster(tmp_path, **settings(tmp_path / "home")) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        await page.post("/login", ADMIN)
        full = NEW | {"white_address": "10.7.*"}
        assert (await change(page, "/new-account", **full))[0] == 303
        path = f"/accounts/{NEW['key']}/edit"
        status, text = await change(page, path, **full | {field: ""})
        assert (status, problem in text) == (400, True), text
        assert full[field].split()[0] in (await page.get(path)).text


async def test_brokers_that_differ_are_told_apart(tmp_path: Path) -> None:
    homes = [written_accounts(tmp_path / name) for name in ("one", "two")]
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(homes[0])) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        rules = homes[1] / "conf" / "plain_acl.yml"
        rules.write_text(rules.read_text().replace("TopicPerm: SUB", "TopicPerm: PUB"))
        config, store, _ = load({
            **SMALL_FILES, "brokerName": "broker-b", "listenPort": "0", "aclEnable": "true",
            "rocketmqHome": str(homes[1]), "namesrvAddr": cluster.namesrv,
            "storePathRootDir": str(tmp_path / "other"),
        })  # fmt: skip
        async with running_broker(config, store, SystemClock()):
            await page.post("/login", ADMIN)
            assert "differs between brokers" in (await page.get("/accounts?q=reader")).text
            assert "differs between brokers" not in (await page.get("/accounts?q=operator")).text
            path = f"/accounts/{READER['access_key']}"
            one = (await page.get(path)).text
            assert "in different forms" in one
            assert one.index("broker-a") < one.index("broker-b")
            form = {"default_topic": "SUB", "default_group": "SUB", "topics": "", "groups": ""}
            assert (await change(page, f"{path}/edit", **form))[0] == 303
            assert "broker-a, broker-b" in (await page.get(path)).text


async def test_without_access_control_the_page_says_so(cometmq_cluster: Cluster) -> None:
    async with running_page(cometmq_cluster.namesrv, allow_changes=True) as page:
        text = (await page.get("/accounts")).text
        assert "Access control is off" in text
        assert "New account" not in text
        async with Client(cometmq_cluster.namesrv) as client:
            with pytest.raises(BrokerRefused, match="does not enable acl"):
                await Servers(Admin(client.session)).accounts()


USERS = [
    {"username": "rocket", "password": "never-shown", "userType": "Super", "userStatus": "enable"},
    {"username": "reader", "password": "never-shown", "userStatus": "disable"},
    {"username": "idle", "password": "never-shown", "userType": "Normal"},
]
POLICIES = [
    {
        "subject": "User:reader",
        "policies": [
            {
                "policyType": "Custom",
                "entries": [
                    {
                        "resource": "Topic:<orders>",
                        "actions": ["Sub", "Get"],
                        "sourceIps": ["10.0.0.0/8"],
                        "decision": "Deny",
                    }
                ],
            },
            {"policyType": "Default"},
        ],
    }
]


async def test_users_of_rocketmq_5_are_shown_without_passwords(
    cometmq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that answers as one of RocketMQ 5 does; tests/compat asks a real one."""
    call = Remoting.call
    answers = {3005: USERS, 3010: POLICIES}

    async def as_rocketmq_5(
        self: Remoting, address: str, code: int, *rest: Any, **more: Any
    ) -> Any:
        if code in answers:
            return Response(0, 1, None, {}, json.dumps(answers[code]).encode())
        if code == RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG:
            not_supported = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            raise BrokerRefused(address, code, not_supported, "not supported")
        response = await call(self, address, code, *rest, **more)
        if code == RequestCode.GET_BROKER_CONFIG:
            response.body += b"\nenableControllerMode=false\n"
        return response

    monkeypatch.setattr(Remoting, "call", as_rocketmq_5)
    async with running_page(cometmq_cluster.namesrv, allow_changes=True) as page:
        text = (await page.get("/accounts")).text
        assert "New account" not in text, "no broker takes one"
        for word in (
            "Users of RocketMQ 5", "rocket", "administrator", "everything", "disabled", "nothing",
            "Deny Sub, Get on", "Topic:&lt;orders&gt;", "10.0.0.0/8", "broker-a",
        ):  # fmt: skip
            assert word in text, word
        assert "never-shown" not in text
        assert ">idle" not in (await page.get("/accounts?q=reader")).text
