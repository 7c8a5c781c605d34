"""Access control of one server: checks each request, and reads the files again when they change.

The rules are read at the start, and again, in a thread, within :data:`POLL_MS` of a change of the
files. A file that cannot be used is logged, and the previous rules stay in force.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cometmq.acl.requests import needs_admin, needs_of
from cometmq.acl.rules import Permission
from cometmq.core.errors import AclDenied
from cometmq.speedups import AccessCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.acl.files import AclContent, AclFiles
    from cometmq.acl.rules import AclRules
    from cometmq.core.clock import Clock
    from cometmq.net.peer import Peer
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Time between two checks for changed files; upstream checks every 5 s.
POLL_MS: Final = 1_000


#: Maximum number of addresses whose decisions are kept; at the limit, the oldest is dropped.
_HOSTS_MAX: Final = 4_096
#: Size of the port at the end of ``Peer.host_bytes``.
_PORT_BYTES: Final = 4


class AccessControl:
    """Refuses requests that the rules do not allow.

    With ``only_changes``, which a name server uses, it checks only requests that change the server.
    Its construction reads the files, and raises AclDenied, which names the file, if one cannot be
    used.
    """

    def __init__(self, files: AclFiles, clock: Clock, *, only_changes: bool = False) -> None:
        self._files = files
        self._clock = clock
        self._only_changes = only_changes
        self._changing = asyncio.Lock()
        self._fingerprint = files.fingerprint()
        #: Why the present files are not in force; "" if they are.
        self._problem = ""
        self.content: AclContent = files.read()
        #: Decisions by the address of a client; None for one on the global white list.
        self._caches: dict[bytes, AccessCache | None] = {}
        #: Decisions by the accounts whose white list has an address: most addresses share one.
        self._shared: dict[frozenset[str], AccessCache] = {}
        self._report()

    @property
    def default_path(self) -> str:
        """Path of the file that gets new accounts."""
        return self._files.default_path

    # -------------------------------------------------------------------------------- for a router

    def check(self, peer: Peer, request: Request[Any]) -> str | None:
        """Return the access key of the account that may send this request; None if it needs none.

        Raises AclDenied if the sender may not send it.
        """
        code = request.code
        changes = needs_admin(code)
        if self._only_changes and not changes:
            return None
        fields = request.fields or {}
        try:
            account = self.content.rules.authenticate(peer.host, fields, request.body)
            if account is not None:
                # The body of an unrestricted account's request need not be read.
                needs = () if account.is_unrestricted else needs_of(code, fields, request.body)
                account.check(code, needs, needs_admin=changes)
        except AclDenied as error:
            log.info("request denied code=%d peer=%s reason=%s", code, peer.address, error)
            peer.note_decision(allowed=False)
            raise
        peer.note_decision(allowed=True)
        return None if account is None else account.access_key

    def check_reader(self, peer: Peer, request: Request[Any], topic: str) -> None:
        """Check that the account of a request may read a topic that its fields do not name.

        Raises AclDenied.
        """
        account = self.content.rules.authenticate(peer.host, request.fields or {}, request.body)
        if account is None:
            return
        try:
            account.check(request.code, [(topic, Permission.SUB)], needs_admin=False)
        except AclDenied as error:
            log.info("request denied code=%d peer=%s reason=%s", request.code, peer.address, error)
            raise

    def cache(self, peer: Peer) -> AccessCache | None:
        """Return the decisions about requests of ``peer``; None if all of them are allowed.

        Call it for each read: the decisions are dropped when the rules change.
        """
        rules, cache = peer.decisions
        if rules is not self.content.rules:
            cache = self._cache_of(peer)
            peer.decisions = self.content.rules, cache
        return cache

    @property
    def rules(self) -> AclRules:
        """The rules in force; another object once they have changed."""
        return self.content.rules

    def _cache_of(self, peer: Peer) -> AccessCache | None:
        host, caches = peer.host_bytes[:-_PORT_BYTES], self._caches
        if host in caches:
            return caches[host]
        if len(caches) >= _HOSTS_MAX:
            del caches[next(iter(caches))]
        cache = caches[host] = self._cache_for(peer.host)
        return cache

    def _cache_for(self, host: str) -> AccessCache | None:
        rules = self.content.rules
        if rules.is_white_listed(host):
            return None
        trusting = rules.trusting(host)
        cache = self._shared.get(trusting)
        if cache is None:
            cache = self._shared[trusting] = _new_cache(rules, host)
        return cache

    # ------------------------------------------------------------------------------------- changes

    async def watch(self) -> None:
        """Read the files again whenever one of them has changed; runs until it is cancelled."""
        while True:
            await self._clock.sleep_ms(POLL_MS)
            async with self._changing:
                await self._look()

    async def change(self, change: Callable[[AclFiles], object]) -> object:
        """Run a change of the files, put it in force and return its result."""
        async with self._changing:
            result = await asyncio.to_thread(change, self._files)
            await self._look()
        return result

    async def _look(self) -> None:
        try:
            fingerprint = await asyncio.to_thread(self._files.fingerprint)
            if fingerprint == self._fingerprint:
                return
            before, self._fingerprint = self._fingerprint, fingerprint
            try:
                self.content = await asyncio.to_thread(self._files.read)
            except AclDenied as error:
                if isinstance(error.__cause__, OSError):
                    self._fingerprint = before  # the read failed, not the content: read again
                raise
            self._caches, self._shared = {}, {}
            self._problem = ""
        except (AclDenied, OSError) as error:
            if str(error) != self._problem:
                log.error("acl files not in force reason=%s", error)
            self._problem = str(error)
            return
        self._report()

    def _report(self) -> None:
        rules = self.content.rules
        for warning in self.content.warnings:
            log.warning("acl account ignored reason=%s", warning)
        if not rules.accounts and not rules.white_list:
            log.warning(
                "acl refuses every request reason=no account in %s", self._files.default_path
            )
        log.info(
            "acl in force accounts=%d white_list=%d", len(rules.accounts), len(rules.white_list)
        )


def _new_cache(rules: AclRules, host: str) -> AccessCache:
    def allows(access_key: str, code: int, topic: str, group: str) -> bool:
        # The codes that are decided here name topic and group in these fields.
        fields = {"topic": topic, "b": topic, "consumerGroup": group}
        try:
            account = rules.account(host, access_key)
            account.check(code, needs_of(code, fields, b""), needs_admin=needs_admin(code))
        except AclDenied:
            return False
        return True

    return AccessCache(partial(rules.secret_of, host), allows)
