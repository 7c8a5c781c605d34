"""Logins: who needs one, what it proves, and that nothing of it gets out."""

from pathlib import Path

import pytest

from cometmq.dashboard import accounts
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


async def test_failed_logins_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "FAILURES_MAX", 2)
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv) as page,
    ):
        for _ in range(2):
            await page.post("/login", ADMIN | {"secret_key": "wrong-secret"})
        refused = await page.post("/login", ADMIN)
        assert "wait a minute" in refused.text
        assert "set-cookie" not in refused.headers


async def test_a_made_up_cookie_is_nobody(tmp_path: Path) -> None:
    home = written_accounts(tmp_path / "home")
    async with (
        running_cluster(tmp_path, acl_enable=True, rocketmq_home=str(home)) as cluster,
        running_page(cluster.namesrv) as page,
    ):
        await page.get("/")
        page.cookie = "cometmq_login=made-up"
        assert (await page.get("/topics")).status == 303
