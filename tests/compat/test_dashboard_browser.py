"""The page of Java's brokers in a real Chromium: what a person sees, types and clicks there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from cometmq.client.blocking import Client
from cometmq.message.model import Message
from tests.client.shared_broker import fresh_name
from tests.compat import anchor
from tests.compat.conftest import SharedPeers, Target
from tests.dashboard.test_accounts import ADMIN, written_accounts
from tests.operation.browser import changing, launched, opened

PHONE = {"width": 390, "height": 800}
WAIT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with launched() as found:
        yield found


@contextmanager
def under_load(namesrv: str, topic: str, group: str) -> Iterator[None]:
    """Send messages until the block ends; a group has consumed one of them."""
    ended = threading.Event()
    with Client(namesrv) as client:
        client.send(Message(topic, b'{"order": 0}', keys=("order-0",)))
        for message in client.subscribe(topic, group=group, start="first"):
            with message.processing():
                break

        def send() -> None:
            while not ended.wait(0.05):
                client.send(Message(topic, b'{"order": 1}', tag="paid"))

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(20)


@pytest.mark.runs("java", "java5")
def test_views_searches_and_changes(browser: Browser, target: Target) -> None:
    topic, group = fresh_name("shown"), fresh_name("viewers")
    paths = (
        *("", "topics", f"topics/{topic}", "new-topic", "groups", f"groups/{group}"),
        *(f"groups/{group}/members", f"groups/{group}/reset?topic={topic}&to=first"),
        *(f"groups/{group}/settings", f"messages?topic={topic}", "dead", "producers", "waiting"),
        *("store", "settings", "accounts"),
    )
    with (
        under_load(target.namesrv, topic, group),
        changing(target.namesrv) as home,
        opened(browser, viewport=PHONE) as page,
    ):
        page.set_default_timeout(WAIT_MS)
        for path in paths:
            answer = page.goto(home + path)
            assert answer is not None
            assert answer.status == 200, path
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        page.goto(home)
        expect(page.locator(".figure .value").first).not_to_have_text("–", timeout=WAIT_MS)

        page.goto(f"{home}topics")
        page.keyboard.press("/")
        page.keyboard.type(topic)
        expect(page.get_by_role("link", name=topic, exact=True)).to_be_visible(timeout=WAIT_MS)

        page.goto(f"{home}messages?topic={topic}&by=key&value=order-0")
        page.locator("td a.mono").first.click()
        expect(page.locator("pre")).to_contain_text('"order": 0')
        page.get_by_role("link", name="Send again").click()
        page.get_by_role("button", name="Send the copy").click()
        expect(page.get_by_role("status").first).to_contain_text("A copy was stored")

        page.goto(f"{home}groups/{group}/reset")
        page.locator("[name=topic]").first.select_option(topic)
        page.locator("[name=to]").first.select_option("last")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("nothing has changed yet")).to_be_visible()
        page.get_by_label("Repeat the name of the group").fill(group)
        page.get_by_role("button", name="Reset").click()
        expect(page.get_by_role("status").first).to_contain_text("The offsets were reset")


def test_a_login(browser: Browser, peers: SharedPeers, tmp_path: Path) -> None:
    peers.stop_java()
    written_accounts(tmp_path)
    java = anchor.JavaCluster(anchor.fetch_jars(), tmp_path, {"aclEnable": "true"})
    with java.until_killed(), changing(java.namesrv) as home:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(home)
            page.goto(home)
            page.get_by_label("Access key").fill(ADMIN["access_key"])
            page.get_by_label("Secret key").fill("wrong-secret")
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_role("alert")).to_contain_text("does not accept", timeout=WAIT_MS)
            page.get_by_label("Secret key").fill(ADMIN["secret_key"])
            page.get_by_role("button", name="Log in").click()
            expect(page.locator(".broker")).to_contain_text(java.broker, timeout=WAIT_MS)
        finally:
            context.close()
