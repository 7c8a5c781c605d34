"""Consumer groups and what they may do: config/subscriptionGroup.json
(upstream: SubscriptionGroupManager.java).

    {"dataVersion":{"counter","timestamp"},"subscriptionGroupTable":{name:{brokerId,
     consumeBroadcastEnable,consumeEnable,consumeFromMinEnable,groupName,
     notifyConsumerIdsChangedEnable,retryMaxTimes,retryQueueNums,whichBrokerWhenConsumeSlowly}}}
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.broker.tables import TableFile, pretty, pretty_entry
from cometmq.broker.topics import is_legal_name, next_version, read_version
from cometmq.core.errors import StoreCorrupt
from cometmq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupTable

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.net.tasks import Tasks
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
_AT_START: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)


class GroupTable:
    """All subscription groups. ``get`` is the plain look-up by name."""

    def __init__(
        self,
        config_directory: str,
        *,
        config: BrokerConfig,
        clock: Clock,
        tasks: Tasks,
        files: Files | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._texts: dict[str, bytes] = {}
        self._version = DataVersion(0, clock.wall_ms())
        self._file = TableFile(
            os.path.join(config_directory, "subscriptionGroup.json"),
            self._encode,
            clock=clock,
            tasks=tasks,
            files=files,
        )
        self.get: Callable[[str], SubscriptionGroupConfig | None] = self._groups.get

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: str) -> bool:
        return group in self._groups

    def load(self) -> None:
        """Read the file and add the groups that every broker has. Raises StoreCorrupt."""
        table = self._file.read(required_key="subscriptionGroupTable")
        if table is not None:
            for name, fields in (table["subscriptionGroupTable"] or {}).items():
                try:
                    group = msgspec.convert(fields, SubscriptionGroupConfig, strict=False)
                except msgspec.ValidationError as error:
                    raise StoreCorrupt(self._file.path, -1, f"group {name!r}: {error}") from None
                self._groups[name] = group
            self._version = read_version(table.get("dataVersion"))
        for name in _AT_START:
            if name not in self._groups:
                self._groups[name] = SubscriptionGroupConfig(name)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """The group's configuration, created when that is allowed; None otherwise."""
        config = self._groups.get(group)
        if config is None and self._may_create(group) and is_legal_name(group):
            config = SubscriptionGroupConfig(group)
            self.put(config)
        return config

    def notifies(self, group: str) -> bool:
        """Whether the consumers of a group are told when its members change."""
        config = self._groups.get(group)
        return self._config.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group."""
        name = config.group_name
        if self._groups.get(name) == config:
            return
        log.info("group %s group=%s", "updated" if name in self._groups else "created", config)
        self._groups[name] = config
        self._texts.pop(name, None)
        self._changed()

    def delete(self, group: str) -> bool:
        """Forget a group; False when there was none."""
        if self._groups.pop(group, None) is None:
            return False
        self._texts.pop(group, None)
        log.info("group deleted group=%s", group)
        self._changed()
        return True

    async def saved(self) -> None:
        """Wait until all changes so far are on the device. Raises StoreError."""
        await self._file.saved()

    async def close(self) -> None:
        """Write what is not written yet."""
        await self._file.close()

    def snapshot(self) -> SubscriptionGroupTable:
        """The whole table, as answer 201 carries it."""
        return SubscriptionGroupTable(self._version, dict(self._groups))

    def _may_create(self, group: str) -> bool:
        return self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)

    def _changed(self) -> None:
        self._version = next_version(self._version, self._clock)
        self._file.touch()

    def _encode(self) -> Iterator[bytes]:
        yield b'{\n\t"dataVersion":' + pretty(self._version, 1)
        yield b',\n\t"subscriptionGroupTable":{'
        separator = b""
        for name, config in list(self._groups.items()):
            text = self._texts.get(name)
            if text is None:
                text = self._texts[name] = pretty_entry(name, _sorted(config), 1)
            yield separator + text
            separator = b","
        yield (b"\n\t}" if separator else b"}") + b"\n}"


def _sorted(config: SubscriptionGroupConfig) -> Mapping[str, Any]:
    return dict(sorted(msgspec.to_builtins(config).items()))
