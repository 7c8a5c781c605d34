"""Settings of a running broker: shown, changed and kept over restarts (upstream:
AdminBrokerProcessor.java, updateBrokerConfig and getBrokerConfig; Configuration.java).

store/settingsfile.py describes the file that keeps changed settings.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.config import apply, kept_path, plan_change
from cometmq.core.errors import BadRequest, SettingsError, StoreError
from cometmq.core.settings import format_properties, normalise, parse_properties, to_properties
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import GetBrokerConfigResponse
from cometmq.store.settingsfile import keep_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request

log = logging.getLogger(__name__)

#: Settings that decide file locations and permissions: no request may change them.
_PROTECTED: Final = frozenset(
    map(normalise, ("brokerConfigPath", "configBlackList", "rocketmqHome"))
)
#: Settings of Java's broker that mqadmin exportConfigs requires in the answer.
_FOR_TOOLS: Final = {"filterServerNums": "0", "useTLS": "false"}


class SettingsAdmin:
    """Serves the codes that show and change settings. ``on_change`` runs after a change."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.tables.topics
        self._clock = context.clock
        self._version = DataVersion(0, context.clock.wall_ms())
        self._changing = asyncio.Lock()
        self.on_change: list[Callable[[], None]] = []

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
        }

    async def update_config(self, peer: Peer, request: Request[Any]) -> Reply:
        """Change settings and keep them: all of the settings sent, or none."""
        try:
            values = parse_properties(request.body.decode("utf-8", "replace"))
            if _PROTECTED & {normalise(key) for key in values}:
                raise BadRequest(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            async with self._changing:
                planned = plan_change(self._config, self._store.config, values)
                kept = {name: planned.texts[name] for name in planned.changed}
                if kept:
                    await self._keep(kept)
                changed = apply(self._config, self._store.config, planned)
        except SettingsError as error:
            raise BadRequest(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if planned.ignored:
            log.warning("settings without effect keys=%s", ",".join(planned.ignored))
        log.warning("settings changed by=%s changed=%s", peer.address, ",".join(changed) or "none")
        if changed:
            self._version = DataVersion(self._version.counter + 1, self._clock.wall_ms())
            for listener in self.on_change:
                listener()
        if {"broker_permission", "auto_create_topic_enable"} & set(changed):
            self._topics.permission_changed()
        return Reply()

    async def get_config(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return all settings as a property file."""
        own = to_properties(self._store.config) | to_properties(self._config)
        values = _FOR_TOOLS | own
        version = msgspec.json.encode(self._version).decode()
        return Reply(
            header=GetBrokerConfigResponse(version), body=format_properties(values).encode()
        )

    async def _keep(self, changed: Mapping[str, str]) -> None:
        """Write the changed settings beside the earlier ones. Raise StoreError if that fails."""
        loop = asyncio.get_running_loop()
        # A cancelled request must wait for its thread: the next request writes the same file.
        files, root = self._store.files, self._store.config.store_path_root_dir
        writing = loop.run_in_executor(None, keep_settings, kept_path(root), changed, files)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise
        except OSError as error:
            raise StoreError(f"cannot keep the settings, so they are unchanged: {error}") from error
