"""Settings of a running broker: shown, changed and kept over restarts (upstream:
AdminBrokerProcessor.java, updateBrokerConfig and getBrokerConfig; Configuration.java).

Changed settings are kept in ``config/cometmq-settings.properties`` below the store, one line a key,
and override the property file and the command line at the next start. A setting stays changed until
it is changed again, or its line is removed while the broker is stopped. Java brokers ignore the
file.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.config import apply, plan_change
from cometmq.core.errors import BadRequest, SettingsError, StoreError
from cometmq.core.settings import format_properties, normalise, parse_properties, to_properties
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.frame import Reply
from cometmq.protocol.headers import GetBrokerConfigResponse
from cometmq.store.files import make_durable_directory, read_file, write_file_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.context import BrokerContext
    from cometmq.net.peer import Peer
    from cometmq.net.router import Handler
    from cometmq.protocol.frame import Request
    from cometmq.store.config import StoreConfig
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

SETTINGS_FILE: Final = "cometmq-settings.properties"
#: Settings that decide file locations and permissions: no request may change them.
_PROTECTED: Final = frozenset(
    map(normalise, ("brokerConfigPath", "configBlackList", "rocketmqHome"))
)
_HEADER: Final = (
    "# Settings that were changed while the broker ran. They override its property file and its\n"
    "# command line. To undo a change, stop the broker and remove the line.\n"
)


def kept_path(root: str) -> str:
    """Return the path of the changed settings in a store directory."""
    return os.path.join(root, "config", SETTINGS_FILE)


def read_kept(files: Files, root: str) -> dict[str, str]:
    """Return the changed settings that a store directory has.

    Raise SettingsError for a line that is no setting, OSError if the file cannot be read.
    """
    path = kept_path(root)
    raw = read_file(files, path)
    try:
        return {} if raw is None else parse_properties(raw.decode("utf-8", "replace"))
    except SettingsError as error:
        raise SettingsError(error.key, error.problem, where=path) from None


def apply_kept(config: BrokerConfig, store: StoreConfig, files: Files) -> None:
    """Apply the changed settings of an earlier run to ``config`` and ``store``.

    Keys that cannot be changed while a broker runs are left out, with a warning. Raise as
    :func:`read_kept` does, and SettingsError for a value that cannot be used.
    """
    root = store.store_path_root_dir
    for key, value in read_kept(files, root).items():
        try:
            planned = plan_change(config, store, {key: value})
        except SettingsError as error:
            if error.is_unusable:
                raise SettingsError(key, error.problem, where=kept_path(root)) from None
            log.warning("kept_setting_ignored key=%s reason=%s", key, error.problem)
            continue
        if apply(config, store, planned):
            path = kept_path(root)
            log.warning("kept_setting_overrides key=%s value=%s path=%s", key, value, path)


class SettingsAdmin:
    """Serves the codes that show and change settings."""

    def __init__(self, context: BrokerContext) -> None:
        self._config = context.config
        self._store = context.store
        self._topics = context.tables.topics
        self._clock = context.clock
        self._version = DataVersion(0, context.clock.wall_ms())
        self._changing = asyncio.Lock()

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
        if {"broker_permission", "auto_create_topic_enable"} & set(changed):
            self._topics.permission_changed()
        return Reply()

    async def get_config(self, _peer: Peer, _request: Request[Any]) -> Reply:
        """Return all settings as a property file."""
        values = to_properties(self._store.config) | to_properties(self._config)
        version = msgspec.json.encode(self._version).decode()
        return Reply(
            header=GetBrokerConfigResponse(version), body=format_properties(values).encode()
        )

    async def _keep(self, changed: Mapping[str, str]) -> None:
        """Write the changed settings beside the earlier ones. Raise StoreError if that fails."""
        loop = asyncio.get_running_loop()
        # A request that is cancelled must not leave its thread behind: the next one writes too.
        writing = loop.run_in_executor(None, self._write, changed)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])
            raise
        except OSError as error:
            raise StoreError(f"cannot keep the settings, so they are unchanged: {error}") from error

    def _write(self, changed: Mapping[str, str]) -> None:
        files, root = self._store.files, self._store.config.store_path_root_dir
        kept = {normalise(key): (key, value) for key, value in read_kept(files, root).items()}
        kept |= {normalise(key): (key, value) for key, value in changed.items()}
        path = kept_path(root)
        make_durable_directory(files, os.path.dirname(path))
        text = _HEADER + format_properties(dict(kept.values()))
        write_file_atomically(files, path, text.encode(), durable=True)
