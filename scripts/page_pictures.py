"""Take the pictures of the page that the documentation shows: docs/images/dashboard-*.png.

    .venv/bin/python -m scripts.page_pictures [--seconds 180] [--to docs/images]

A node with two topics and three groups, one of them too slow, and its page, in Debian's Chromium.
Look at the pictures before you commit them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.async_api import async_playwright

from cometmq.admin.api import Admin
from cometmq.admin.node import NodeProcess
from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.dashboard.app import running_dashboard
from cometmq.dashboard.guard import Place
from tests.operation.browser import chromium

if TYPE_CHECKING:
    from playwright.async_api import Browser

#: Messages a second, of both topics together.
RATE: Final = 300
#: How long a member of a group works on a message, milliseconds.
GROUPS: Final = {"billing": 20.0, "shipping": 0.0, "mail": 2.0}
WIDE: Final = {"width": 1200, "height": 860}
PHONE: Final = {"width": 390, "height": 800}


async def send(client: Client) -> None:
    """Send orders and payments until cancelled."""
    number = 0
    while True:
        number += 1
        topic = "payments" if number % 4 == 0 else "orders"
        body = b'{"order": %d, "total": %.2f}' % (number, 5 + number % 97)
        await client.send(topic, body, tag="paid", keys=[f"order-{number}"])
        await asyncio.sleep(1 / RATE)


async def work(client: Client, group: str, pause_ms: float) -> None:
    """Consume orders until cancelled."""
    async with client.subscribe("orders", group=group, start="first") as messages:
        async for message in messages:
            async with message.processing():
                await asyncio.sleep(pause_ms / 1000)


async def take(browser: Browser, url: str, path: Path, size: dict[str, int], **more: Any) -> None:
    """Take the picture of one page."""
    context = await browser.new_context(viewport=size, **more)  # type: ignore[arg-type]
    page = await context.new_page()
    await page.goto(url)
    await page.wait_for_timeout(2_500)  # one poll, so that all figures are of one moment
    await page.screenshot(path=path)
    await context.close()
    print(path)


async def pictures(namesrv: str, seconds: float, target: Path) -> None:
    """Let the cluster work, and take the pictures."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(namesrv))
        for topic, queues in (("orders", 8), ("payments", 4)):
            await Admin(client.session).create_topic(topic, queues=queues)
        viewer = Client(namesrv)
        url = await stack.enter_async_context(
            running_dashboard(viewer, SystemClock(), Place(port=0), allow_changes=True)
        )
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(send(client))]
            running += [
                tasks.create_task(work(client, group, pause_ms))
                for group, pause_ms in GROUPS.items()
            ]
            found = chromium()
            driver = await stack.enter_async_context(async_playwright())
            browser = await driver.chromium.launch(
                executable_path=str(found.program), args=["--no-sandbox"],
                env=dict(found.environment()),
            )  # fmt: skip
            page = await browser.new_page()
            await page.goto(url)  # somebody looks, so that charts have all points
            await asyncio.sleep(seconds)
            await take(browser, url, target / "dashboard-cluster.png", WIDE)
            group = f"{url}groups/billing"
            await take(browser, group, target / "dashboard-group.png", WIDE, color_scheme="dark")
            await take(browser, group, target / "dashboard-phone.png", PHONE)
            await browser.close()
            for each in running:
                each.cancel()


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--to", type=Path, default=Path("docs/images"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-pictures-") as place:
        node = NodeProcess(Path(place) / "store", namesrv_port=9876, broker_port=10911)
        node.start()
        try:
            asyncio.run(pictures(node.namesrv, asked.seconds, asked.to))
        finally:
            node.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
