"""A page as a browser asks for it, without a browser."""

from __future__ import annotations

import asyncio
import http.client
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from cometmq.client.client import Client
from cometmq.core.clock import SystemClock
from cometmq.dashboard.app import running_dashboard
from cometmq.dashboard.guard import TOKEN_FIELD, Place


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its status, headers (lower case) and text."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def token(self) -> str:
        """The token for changes that its forms have."""
        found = re.search(rf'name="{TOKEN_FIELD}" value="([0-9a-f]+)"', self.text)
        assert found is not None, self.text
        return found[1]


@dataclass(slots=True)
class Page:
    """A running page; it keeps the cookie that it got, as a browser does."""

    url: str
    cookie: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    async def get(self, path: str, **headers: str) -> Answer:
        """Ask for a page."""
        return await asyncio.to_thread(self._ask, "GET", path, None, headers)

    async def post(self, path: str, fields: dict[str, Any], **headers: str) -> Answer:
        """Send a form."""
        body = urlencode(fields, doseq=True)
        return await asyncio.to_thread(self._ask, "POST", path, body, headers)

    def _ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["content-type"] = "application/x-www-form-urlencoded"
        if self.cookie:
            sent["cookie"] = self.cookie
        try:
            connection.request(method, path, body, sent)
            got = connection.getresponse()
            found = {name.lower(): value for name, value in got.getheaders()}
            if "set-cookie" in found:
                self.cookie = found["set-cookie"].partition(";")[0]
            return Answer(got.status, found, got.read().decode())
        finally:
            connection.close()


@asynccontextmanager
async def running_page(
    namesrv: str, *, names: tuple[str, ...] = (), proxies: tuple[str, ...] = (), **more: Any
) -> AsyncIterator[Page]:
    """Run the page of a cluster in this event loop."""
    client = Client(namesrv, credentials=more.pop("credentials", None))
    place = Place(names=names, proxies=proxies)
    async with running_dashboard(client, SystemClock(), place, **more) as url:
        yield Page(url)
