"""Viewers of the dashboard: their logins, accounts and tokens. All are kept in memory only.

    no access control   no login: everybody shares one anonymous viewer
    access control      a login is tried on the cluster, by a client with the entered credentials

Viewers of one account share a client, which is closed after the last of their logins ends. Logins
end when all brokers refuse the account. The cookie of a login holds a random token. A form that
changes something sends a second token, derived from the first: another site cannot read the cookie,
so it cannot compute the second token.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.admin.api import Admin
from cometmq.client.client import Client
from cometmq.core.errors import ClientError, CometError
from cometmq.dashboard.attempts import Attempts
from cometmq.dashboard.history import History
from cometmq.dashboard.watched import WatchedCluster, is_refusal
from cometmq.net.tasks import Tasks
from cometmq.protocol.acl import Credentials

if TYPE_CHECKING:
    from cometmq.core.clock import Clock

T = TypeVar("T")

#: Logins at one time; the one that was used least recently ends.
VIEWERS_MAX: Final = 256
#: Accounts at one time, each with a client of its own.
ACCOUNTS_MAX: Final = 16
#: A login that is not used ends after this time.
LOGIN_MS: Final = 8 * 3_600_000
#: A login in use ends after this time too: an open page polls, so its login never becomes unused.
LOGIN_LASTS_MS: Final = 12 * 3_600_000
#: Interval at which ended logins are removed.
SWEEP_MS: Final = 30_000
#: Outcomes of one viewer's changes that no page has shown yet; the oldest is dropped first.
OUTCOMES_MAX: Final = 32
#: Logins that are tried on the cluster at one time.
_TRIALS_MAX: Final = 8
#: Brokers that a login is tried on at one time.
_BROKERS_AT_ONCE: Final = 16


class LoginRefused(CometError):
    """A login did not succeed; the message says why."""


class Outcomes:
    """Results of one viewer's changes, kept until a page has shown them once.

    The response to a change is a redirect, so that reloading the page does not repeat the change.
    The redirect's URL has a token by which the next page takes the outcome.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, object] = OrderedDict()

    def keep(self, outcome: object) -> str:
        """Keep an outcome; return the token with which a page takes it."""
        token = secrets.token_urlsafe(12)
        self._kept[token] = outcome
        while len(self._kept) > OUTCOMES_MAX:
            self._kept.popitem(last=False)
        return token

    def take(self, token: str, kind: type[T]) -> T | None:
        """Return the outcome of a token and forget it; None if there is none of this kind."""
        outcome = self._kept.pop(token, None)
        return outcome if isinstance(outcome, kind) else None


@dataclass(slots=True)
class Viewer:
    """One login, or the anonymous viewer, with the cluster as its account sees it.

    ``begun_ms`` and ``used_ms`` are monotonic.
    """

    cluster: WatchedCluster
    token: str = field(repr=False)
    begun_ms: int = 0
    used_ms: int = 0
    outcomes: Outcomes = field(default_factory=Outcomes, repr=False)

    @property
    def change_token(self) -> str:
        """Token that a form must send with a change."""
        return hashlib.sha256(f"change {self.token}".encode()).hexdigest()


class Viewers:
    """All viewers. ``own`` is the client that the process was started with, open or not.

    If ``own`` has credentials, everybody must log in, with these or with others that the cluster
    accepts.
    """

    def __init__(self, own: Client, clock: Clock) -> None:
        self._own = own
        self._clock = clock
        given = own.config.credentials
        self._own_account = given.access_key if given is not None else ""
        self._secret = secrets.token_bytes(32)
        self._accounts: OrderedDict[str, tuple[Credentials | None, WatchedCluster]] = OrderedDict()
        self._viewers: OrderedDict[str, Viewer] = OrderedDict()
        self._attempts = Attempts()
        self._trials = asyncio.Semaphore(_TRIALS_MAX)
        self._keeping = asyncio.Lock()
        self._history = History()
        self._tasks = Tasks()
        self._anonymous: Viewer | None = None

    async def start(self) -> None:
        """Open the client of the process and begin to watch its cluster."""
        await self._own.start()
        cluster = WatchedCluster(self._own, self._clock, self._own_account, self._history)
        cluster.start()
        self._accounts[self._own_account] = self._own.config.credentials, cluster
        if not self._own_account:
            self._anonymous = Viewer(cluster, secrets.token_urlsafe(32))
        self._tasks.keep(self._sweep, name="dashboard logins", clock=self._clock)

    async def close(self) -> None:
        """End all logins and close all clients."""
        await self._tasks.close()
        self._viewers.clear()
        for _, cluster in self._accounts.values():
            await cluster.close()
        self._accounts.clear()

    def of(self, token: str) -> Viewer | None:
        """Return the viewer of a cookie's token, or the anonymous one; None if a login is needed.

        An empty token stands for a request without a cookie.
        """
        now_ms = self._clock.monotonic_ms()
        viewer = self._viewers.get(self._name(token)) if token else None
        if viewer is not None:
            if self._is_valid(viewer, now_ms):
                viewer.used_ms = now_ms
                self._viewers.move_to_end(self._name(token))
                return viewer
            # The next sweep closes its client, if no other login uses it.
            del self._viewers[self._name(token)]
        if self._anonymous is None or self._anonymous.cluster.is_refused:
            return None
        return self._anonymous

    def is_anonymous(self, viewer: Viewer) -> bool:
        """Return whether a viewer came without a login."""
        return viewer is self._anonymous

    async def log_in(self, access_key: str, secret_key: str, address: str = "") -> Viewer:
        """Return a new viewer for an account that the cluster accepts. Raises LoginRefused.

        ``address`` is the browser's address, by which failed logins are counted and limited.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._attempts.begin(address, access_key, now_ms):
            raise LoginRefused("too many failed logins: wait a minute")
        async with self._trials:
            cluster = await self._cluster(access_key, secret_key)
        self._attempts.succeed(address, access_key, now_ms)
        begun_ms = self._clock.monotonic_ms()
        viewer = Viewer(cluster, secrets.token_urlsafe(32), begun_ms, begun_ms)
        while len(self._viewers) >= VIEWERS_MAX:
            self._viewers.popitem(last=False)
        self._viewers[self._name(viewer.token)] = viewer
        return viewer

    async def log_out(self, token: str) -> None:
        """End a login, and close the client of its account if no other login uses it."""
        self._viewers.pop(self._name(token), None)
        await self.sweep()

    async def sweep(self) -> None:
        """End logins that are too old or refused, and close the clients of unused accounts."""
        async with self._keeping:
            now_ms = self._clock.monotonic_ms()
            for name, viewer in list(self._viewers.items()):
                if not self._is_valid(viewer, now_ms):
                    del self._viewers[name]
            used = {viewer.cluster for viewer in self._viewers.values()}
            for account, (_, cluster) in list(self._accounts.items()):
                if account != self._own_account and cluster not in used:
                    await self._end(account)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep_ms(SWEEP_MS)
            await self.sweep()

    @staticmethod
    def _is_valid(viewer: Viewer, now_ms: int) -> bool:
        is_fresh = (
            now_ms - viewer.used_ms <= LOGIN_MS and now_ms - viewer.begun_ms <= LOGIN_LASTS_MS
        )
        return is_fresh and not viewer.cluster.is_shut_out

    async def _cluster(self, access_key: str, secret_key: str) -> WatchedCluster:
        """Return the cluster as the account sees it. Raises LoginRefused."""
        known = self._accounts.get(access_key)
        # The secret of the process's own account is known, so no broker has to check it.
        if (
            known is not None
            and access_key == self._own_account
            and _same_secret(known[0], secret_key)
            and not await _is_shut_out(known[1].client)
            and self._accounts.get(access_key) is known
        ):
            return known[1]
        try:
            credentials = Credentials(access_key, secret_key)
        except CometError as error:
            raise LoginRefused(str(error)) from None
        # Brokers serve white-listed addresses without checking signatures. If a wrong secret is
        # accepted, an accepted login proves nothing.
        wrong = Client(config=replace(self._own.config, credentials=_wrong(credentials)))
        async with wrong:
            if not all(await _refusals(wrong)):
                problem = "the brokers serve this machine without an account (white list)"
                raise LoginRefused(f"{problem}: log in with the account that the page started with")
        client = Client(config=replace(self._own.config, credentials=credentials))
        await client.start()
        try:
            # One broker that accepts is enough: others may not have the account.
            if all(await _refusals(client)):
                raise LoginRefused("the cluster does not accept this access key and secret key")
        except BaseException:
            await client.close()
            raise
        async with self._keeping:
            return await self._keep(credentials, client)

    async def _keep(self, credentials: Credentials, client: Client) -> WatchedCluster:
        """Return the cluster of an account; the known one if its secret is the same.

        An account that is known with another secret ends first, and so do the least recently used
        accounts beyond ACCOUNTS_MAX.
        """
        account = credentials.access_key
        known = self._accounts.get(account)
        if known is not None:
            if _same_secret(known[0], credentials.secret_key) and not known[1].is_shut_out:
                await client.close()
                self._accounts.move_to_end(account)
                return known[1]
            await self._end(account)
        others = [each for each in self._accounts if each != self._own_account]
        for each in others[: max(0, len(others) - ACCOUNTS_MAX + 1)]:
            await self._end(each)
        cluster = WatchedCluster(client, self._clock, account, self._history)
        cluster.start()
        self._accounts[account] = credentials, cluster
        return cluster

    async def _end(self, account: str) -> None:
        """End an account with its logins."""
        _, cluster = self._accounts.pop(account)
        for name, viewer in list(self._viewers.items()):
            if viewer.cluster is cluster:
                del self._viewers[name]
        await cluster.close()

    def _name(self, token: str) -> str:
        """Return the key under which a token is stored: a keyed hash.

        The time of a look-up then reveals nothing about stored tokens.
        """
        return hmac.new(self._secret, token.encode(), hashlib.sha256).hexdigest()


def _same_secret(credentials: Credentials | None, secret_key: str) -> bool:
    known = credentials.secret_key if credentials is not None else ""
    return bool(known) and hmac.compare_digest(
        known.encode(), secret_key.encode("utf-8", "replace")
    )


def _wrong(credentials: Credentials) -> Credentials:
    """Return the credentials with a random secret instead of theirs."""
    return replace(credentials, secret_key=secrets.token_urlsafe(32))


async def _is_shut_out(client: Client) -> bool:
    """Return whether all brokers that answer refuse an account; False if none answers."""
    try:
        return all(await _refusals(client))
    except LoginRefused:
        return False


async def _refusals(client: Client) -> list[bool]:
    """Return one entry per broker that answers: True if it refuses the client's account.

    Raises LoginRefused if none answers.
    """
    admin = Admin(client.session)
    at_once = asyncio.Semaphore(_BROKERS_AT_ONCE)

    async def refusal(address: str) -> bool | str:
        async with at_once:
            try:
                await admin.broker_runtime(address)
            except ClientError as error:
                return is_refusal(error) or str(error)
            except OSError as error:
                return str(error)
        return False

    try:
        brokers = await admin.brokers()
    except ClientError as error:
        raise LoginRefused(str(error)) from None
    answers = await asyncio.gather(*(refusal(each.address) for each in brokers))
    found = [each for each in answers if isinstance(each, bool)]
    if not found:
        problem = next((each for each in answers if isinstance(each, str)), "")
        raise LoginRefused(problem or "no broker is registered with the name servers")
    return found
