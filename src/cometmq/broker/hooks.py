"""Hooks around sends and pulls, for permissions, traces and statistics (upstream:
SendMessageHook.java, ConsumeMessageHook.java).

A ``before`` may raise a CometError, which refuses the request. Every ``after`` runs once for each
answered request that no ``before`` refused, even if serving it raised a CometError. Its exceptions
are logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cometmq.net.peer import Peer
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)


class SendHook(Protocol):
    """Hook around every send, batch and send-back."""

    def before(self, peer: Peer, request: Request[Any]) -> None:
        """Check a request; raise a CometError to refuse it."""
        ...

    def after(self, peer: Peer, request: Request[Any], code: int, count: int) -> None:
        """Note that the send ended with ``code`` and stored ``count`` messages."""
        ...


class ConsumeHook(Protocol):
    """Hook around every pull that is answered."""

    def before(self, peer: Peer, request: Request[Any]) -> None:
        """Check a request; raise a CometError to refuse it."""
        ...

    def after(
        self, peer: Peer, request: Request[Any], code: int, count: int, size_bytes: int
    ) -> None:
        """Note that the pull ended with ``code`` and returned ``count`` messages of
        ``size_bytes`` in total."""
        ...


class SendHooks:
    """The send hooks of a broker, in the order they were added. The object is false while empty.

    ``added`` is the list itself: on the hot path, testing it is cheaper than testing this object.
    """

    def __init__(self) -> None:
        self._hooks: list[SendHook] = []
        self.added = self._hooks

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, hook: SendHook) -> None:
        """Add ``hook``; it is called from now on."""
        self._hooks.append(hook)

    def before_send(self, peer: Peer, request: Request[Any]) -> None:
        """Run every ``before``; raise the error of the first one that refuses."""
        for hook in self._hooks:
            hook.before(peer, request)

    def after_send(self, peer: Peer, request: Request[Any], code: int, count: int) -> None:
        """Run every ``after``; log their exceptions."""
        for hook in self._hooks:
            try:
                hook.after(peer, request, code, count)
            except Exception:
                log.exception("send hook failed hook=%r code=%d", hook, request.code)


class ConsumeHooks:
    """The consume hooks of a broker, in the order they were added. The object is false while empty.

    ``added`` is the list itself: on the hot path, testing it is cheaper than testing this object.
    """

    def __init__(self) -> None:
        self._hooks: list[ConsumeHook] = []
        self.added = self._hooks

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, hook: ConsumeHook) -> None:
        """Add ``hook``; it is called from now on."""
        self._hooks.append(hook)

    def before_pull(self, peer: Peer, request: Request[Any]) -> None:
        """Run every ``before``; raise the error of the first one that refuses."""
        for hook in self._hooks:
            hook.before(peer, request)

    def after_pull(
        self, peer: Peer, request: Request[Any], code: int, count: int, size_bytes: int
    ) -> None:
        """Run every ``after``; log their exceptions."""
        for hook in self._hooks:
            try:
                hook.after(peer, request, code, count, size_bytes)
            except Exception:
                log.exception("consume hook failed hook=%r code=%d", hook, request.code)
