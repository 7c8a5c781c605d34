"""Logins: who needs one, what it proves, and that nothing of it gets out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.dashboard import attempts
from cometmq.dashboard.accounts import LOGIN_LASTS_MS, LOGIN_MS, LoginRefused, Viewers
from cometmq.protocol.acl import Credentials
from cometmq.testing.cluster import running_cluster
from tests.dashboard.page import running_page

ADMIN = {"access_key": "operator", "secret_key": "operator-secret"}
READER = {"access_key": "reader-key", "secret_key": "reader-secret"}


def written_accounts(home: Path, white_list: str = "") -> Path:
    """Accounts of an administrator and of a reader."""
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(
        f"globalWhiteRemoteAddresses: [{white_list}]\n"
        "accounts:\n"
        f"- accessKey: {ADMIN['access_key']}\n  secretKey: {ADMIN['secret_key']}\n  admin: true\n"
        f"- accessKey: {READER['access_key']}\n  secretKey: {READER['secret_key']}\n"
        "  defaultTopicPerm: SUB\n  defaultGroupPerm: SUB\n"
    )
    return home


async def test_a_cluster_with_accounts_asks_for_a_login(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv, allow_changes=True) as page,
    ):
        await page.get("/")
        answer = await page.get("/topics")
        assert (answer.status, answer.headers["location"]) == (303, "/login")
        assert (await page.get("/topics", x_fragment="1")).status == 401
        wrong = await page.post("/login", ADMIN | {"secret_key": "wrong-secret"})
        assert wrong.status == 401
        assert "does not accept" in wrong.text
        assert "wrong-secret" not in wrong.text
        assert (await page.post("/login", {"access_key": "", "secret_key": ""})).status == 401

        done = await page.post("/login", ADMIN)
        assert done.status == 303
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        first = await page.get("/")
        assert cluster.broker in first.text
        assert ADMIN["secret_key"] not in first.text
        token = (await page.get("/new-topic")).token
        form = {"change_token": token, "name": "made", "read_queues": "1", "write_queues": "1"}
        assert (await page.post("/new-topic", form)).status == 303

        admins = page.cookie
        assert (await page.post("/login", READER)).status == 303
        shown = await page.get("/topics/made")
        assert shown.status == 200
        assert (await page.post("/new-topic", form)).status == 403, "the token of another login"
        form = {"change_token": shown.token, "confirmed": "made"}
        assert (await page.post("/topics/made/delete", form)).status == 502, "no administrator"
        assert (await page.post("/logout", {"change_token": shown.token})).status == 303
        page.cookie = admins
        assert (await page.get("/topics")).status == 200, "another login ended"


async def test_an_account_of_the_command_asks_for_the_same(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home", "127.0.0.1")
    own = Credentials(**ADMIN)
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv, credentials=own) as page,
    ):
        assert (await page.get("/")).status == 303
        # The broker serves this address without an account, so a wrong secret would do there.
        refused = await page.post("/login", READER | {"secret_key": "made-up-secret"})
        assert refused.status == 401
        assert "white list" in refused.text
        assert (await page.post("/login", ADMIN | {"secret_key": "wrong"})).status == 401
        assert (await page.post("/login", ADMIN)).status == 303
        assert cluster.broker in (await page.get("/")).text


async def test_a_login_ends_also_if_it_is_used(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    clock = VirtualClock()
    async with running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster:
        viewers = Viewers(Client(cluster.namesrv), clock)
        await viewers.start()
        try:
            used = await viewers.log_in(**ADMIN)
            unused = await viewers.log_in(**ADMIN)
            begun_ms = clock.monotonic_ms()
            while clock.monotonic_ms() - begun_ms < LOGIN_LASTS_MS:
                clock.advance(LOGIN_MS // 2)
                assert viewers.of(used.token) is used
            assert viewers.of(unused.token) is None, "it was not used for too long"
            clock.advance(1)
            assert viewers.of(used.token) is None
            assert viewers.of((await viewers.log_in(**ADMIN)).token) is not None
        finally:
            await viewers.close()


async def test_failed_logins_are_limited_by_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "ADDRESS_FAILURES_MAX", 2)
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv, proxies=("127.0.0.1",)) as page,
    ):
        for _ in range(2):
            wrong = ADMIN | {"secret_key": "wrong-secret"}
            await page.post("/login", wrong, x_forwarded_for="10.1.2.3")
        refused = await page.post("/login", ADMIN, x_forwarded_for="10.1.2.3")
        assert "wait a minute" in refused.text
        assert "set-cookie" not in refused.headers
        # The forwarded address is that which the proxy saw, not what its peer says of itself.
        forged = await page.post("/login", ADMIN, x_forwarded_for="10.9.9.9, 10.1.2.3")
        assert "wait a minute" in forged.text
        done = await page.post("/login", ADMIN, x_forwarded_for="10.1.2.4")
        assert done.status == 303, "one address locks all out"
        assert "secure" not in done.headers["set-cookie"].lower()
        done = await page.post("/login", ADMIN, x_forwarded_proto="https")
        assert "secure" in done.headers["set-cookie"].lower()


async def test_only_named_proxies_are_believed(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv, proxies=("10.0.0.0/8",)) as page,
    ):
        done = await page.post("/login", ADMIN, x_forwarded_proto="https")
        assert done.status == 303
        assert "secure" not in done.headers["set-cookie"].lower()


@asynccontextmanager
async def viewing(namesrv: str) -> AsyncIterator[Viewers]:
    """Viewers of a cluster, without their pages."""
    viewers = Viewers(Client(namesrv), SystemClock())
    await viewers.start()
    try:
        yield viewers
    finally:
        await viewers.close()


async def test_an_account_ends_with_its_last_login(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        viewing(cluster.namesrv) as viewers,
    ):
        # Two first logins at one time share a client, and both last.
        one, two = await asyncio.gather(*(viewers.log_in(**ADMIN) for _ in range(2)))
        assert one.cluster is two.cluster
        assert viewers.of(one.token) is one
        assert viewers.of(two.token) is two
        await viewers.log_out(one.token)
        assert [*viewers._accounts] == ["", ADMIN["access_key"]]
        await viewers.log_out(two.token)
        assert [*viewers._accounts] == [""]


async def test_a_revoked_account_is_out(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        viewing(cluster.namesrv) as viewers,
    ):
        viewer = await viewers.log_in(**READER)
        kept = await viewers.log_in(**ADMIN)
        file = home / "conf" / "plain_acl.yml"
        file.write_text(file.read_text().replace(READER["secret_key"], "another-secret"))
        async with asyncio.timeout(60):
            while not viewer.cluster.is_shut_out:
                await viewer.cluster.ask_brokers()
                await asyncio.sleep(0.05)
        with pytest.raises(LoginRefused, match="does not accept"):
            await viewers.log_in(**READER)
        assert viewers.of(viewer.token) is None
        assert viewers.of(kept.token) is kept
        await viewers.sweep()
        assert [*viewers._accounts] == ["", ADMIN["access_key"]]


async def test_a_made_up_cookie_is_nobody(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv) as page,
    ):
        await page.get("/")
        page.cookie = "cometmq_login=made-up"
        assert (await page.get("/topics")).status == 303
