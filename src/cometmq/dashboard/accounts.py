"""Viewers of the page: logins, their accounts and their tokens, in the memory of this process.

A cluster without accounts needs no login: all viewers share one anonymous viewer. Otherwise a login
is tried on the cluster itself, with a client that signs by the account, and viewers of one account
share that client. A cookie holds a random token; the token for changes is derived from it, so that
another page, which cannot read the cookie, cannot make it. Nothing of this is written to a file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.errors import ClientError, CometError
from cometmq.dashboard.watched import WatchedCluster, is_refusal
from cometmq.protocol.acl import Credentials

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

#: Logins at one time; the one that was used least recently ends.
VIEWERS_MAX: Final = 256
#: Accounts at one time, each with a client of its own.
ACCOUNTS_MAX: Final = 16
#: A login that is not used ends after this time.
LOGIN_MS: Final = 8 * 3_600_000
#: Failed logins within a minute after which further ones are refused.
FAILURES_MAX: Final = 10
_MINUTE_MS: Final = 60_000


class LoginRefused(CometError):
    """A login did not succeed; the message says why."""


@dataclass(slots=True)
class Viewer:
    """Somebody who looks at the page, with a cluster as their account sees it."""

    cluster: WatchedCluster
    token: str = field(repr=False)
    used_ms: int = 0

    @property
    def change_token(self) -> str:
        """Token that a form must send with a change."""
        return hashlib.sha256(f"change {self.token}".encode()).hexdigest()


class Viewers:
    """All viewers. ``own`` is the client that the process was started with, open or not.

    If it has credentials, a login must have the same or others that the cluster accepts.
    """

    def __init__(self, own: Client, clock: Clock) -> None:
        self._own = own
        self._clock = clock
        given = own.config.credentials
        self._own_account = given.access_key if given is not None else ""
        self._secret = secrets.token_bytes(32)
        self._accounts: OrderedDict[str, tuple[Credentials | None, WatchedCluster]] = OrderedDict()
        self._viewers: OrderedDict[str, Viewer] = OrderedDict()
        self._failed_ms: list[int] = []
        self._anonymous: Viewer | None = None

    async def start(self) -> None:
        """Open the client and begin to watch its cluster."""
        await self._own.start()
        cluster = WatchedCluster(self._own, self._clock, self._own_account)
        cluster.start()
        self._accounts[self._own_account] = self._own.config.credentials, cluster
        if not self._own_account:
            self._anonymous = Viewer(cluster, secrets.token_urlsafe(32))

    async def close(self) -> None:
        """End all logins and close all clients."""
        self._viewers.clear()
        for _, cluster in self._accounts.values():
            await cluster.close()
        self._accounts.clear()

    def of(self, token: str) -> Viewer | None:
        """Return the viewer of a cookie, or the anonymous one; None if a login is needed."""
        now_ms = self._clock.monotonic_ms()
        viewer = self._viewers.get(self._name(token)) if token else None
        if viewer is not None:
            if now_ms - viewer.used_ms <= LOGIN_MS:
                viewer.used_ms = now_ms
                self._viewers.move_to_end(self._name(token))
                return viewer
            self.log_out(token)
        if self._anonymous is None or self._anonymous.cluster.is_refused:
            return None
        return self._anonymous

    async def log_in(self, access_key: str, secret_key: str) -> Viewer:
        """Return a new viewer with an account that the cluster accepts. Raises LoginRefused."""
        now_ms = self._clock.monotonic_ms()
        self._failed_ms = [at for at in self._failed_ms if now_ms - at < _MINUTE_MS]
        if len(self._failed_ms) >= FAILURES_MAX:
            raise LoginRefused("too many failed logins: wait a minute")
        # Counts as failed until it succeeds, so that attempts at one time count too.
        self._failed_ms.append(now_ms)
        cluster = await self._cluster(access_key, secret_key)
        self._failed_ms.remove(now_ms)
        viewer = Viewer(cluster, secrets.token_urlsafe(32), now_ms)
        while len(self._viewers) >= VIEWERS_MAX:
            self._viewers.popitem(last=False)
        self._viewers[self._name(viewer.token)] = viewer
        return viewer

    def log_out(self, token: str) -> None:
        """End a login."""
        self._viewers.pop(self._name(token), None)

    async def _cluster(self, access_key: str, secret_key: str) -> WatchedCluster:
        known = self._accounts.get(access_key)
        if known is not None and _same_secret(known[0], secret_key):
            self._accounts.move_to_end(access_key)
            return known[1]
        try:
            credentials = Credentials(access_key, secret_key)
        except CometError as error:
            raise LoginRefused(str(error)) from None
        # An address on a white list is served without an account: then nothing proves who this is.
        wrong = Client(config=replace(self._own.config, credentials=_wrong(credentials)))
        async with wrong:
            if not await _refusal(wrong):
                problem = "the brokers serve this machine without an account (white list)"
                raise LoginRefused(f"{problem}: log in with the account that the page started with")
        client = Client(config=replace(self._own.config, credentials=credentials))
        await client.start()
        try:
            if await _refusal(client):
                raise LoginRefused("the cluster does not accept this access key and secret key")
        except BaseException:
            await client.close()
            raise
        return await self._keep(credentials, client)

    async def _keep(self, credentials: Credentials, client: Client) -> WatchedCluster:
        """Keep the client of an account, in the place of one with another secret."""
        cluster = WatchedCluster(client, self._clock, credentials.access_key)
        cluster.start()
        gone = [credentials.access_key] if credentials.access_key in self._accounts else []
        others = [each for each in self._accounts if each not in (self._own_account, *gone)]
        gone += others[: max(0, len(others) - ACCOUNTS_MAX + 1)]
        await self._end(gone)
        self._accounts[credentials.access_key] = credentials, cluster
        return cluster

    async def _end(self, accounts: Iterable[str]) -> None:
        for account in accounts:
            _, cluster = self._accounts.pop(account)
            for name, viewer in list(self._viewers.items()):
                if viewer.cluster is cluster:
                    del self._viewers[name]
            await cluster.close()

    def _name(self, token: str) -> str:
        """Return the key of a token. A look-up of a keyed hash tells nothing about tokens."""
        return hmac.new(self._secret, token.encode(), hashlib.sha256).hexdigest()


def _same_secret(credentials: Credentials | None, secret_key: str) -> bool:
    known = credentials.secret_key if credentials is not None else ""
    return bool(known) and hmac.compare_digest(
        known.encode(), secret_key.encode("utf-8", "replace")
    )


def _wrong(credentials: Credentials) -> Credentials:
    return replace(credentials, secret_key=secrets.token_urlsafe(32))


async def _refusal(client: Client) -> bool:
    """Return whether a broker refuses a request of this account. Raises LoginRefused if none
    answers."""
    admin = Admin(client.session)
    try:
        brokers = await admin.brokers()
        if not brokers:
            raise LoginRefused("no broker is registered with the name servers")
        await admin.broker_runtime(brokers[0].address)
    except ClientError as error:
        if is_refusal(error):
            return True
        raise LoginRefused(str(error)) from None
    return False
