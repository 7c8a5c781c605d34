"""Consumer groups and their permissions: config/subscriptionGroup.json (upstream:
SubscriptionGroupManager.java).

    {"dataVersion":{"counter","timestamp"},"subscriptionGroupTable":{name:{brokerId,
     consumeBroadcastEnable,consumeEnable,consumeFromMinEnable,groupName,
     notifyConsumerIdsChangedEnable,retryMaxTimes,retryQueueNums,whichBrokerWhenConsumeSlowly}}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from cometmq.broker.tables import TableFormat, VersionedTable
from cometmq.message.names import SYSTEM_GROUP_PREFIX, is_legal_name
from cometmq.net.limits import Limit, ServerLimits
from cometmq.protocol.bodies import DataVersion, SubscriptionGroupConfig

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.broker.tables import TableDirectory

_FORMAT: Final = TableFormat(
    "subscriptionGroup.json", "subscriptionGroupTable", SubscriptionGroupConfig, "group"
)
#: Groups that every broker has.
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
    """All subscription groups. ``get`` looks a group up by name and never creates it.

    ``on_change`` callbacks run in the same turn of the event loop, after each ``put`` that changed
    something, each ``replace`` and each ``delete``.
    """

    def __init__(
        self,
        directory: TableDirectory,
        config: BrokerConfig,
        limits: ServerLimits | None = None,
    ) -> None:
        self._config = config
        self._limits = limits or ServerLimits(config, directory.clock)
        self._table = VersionedTable(directory, _FORMAT)
        self.get = self._table.get
        self.on_change: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, group: str) -> bool:
        return group in self._table

    def load(self) -> None:
        """Read the file and add the groups that every broker has. Raise StoreCorrupt if it
        cannot be read."""
        self._table.load()
        for name in _AT_START:
            self._table.add_default(name, SubscriptionGroupConfig(name))

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration; create the group if that is allowed, otherwise return
        None.

        A slave does not create a group that its master lacks, but returns the default
        configuration.
        """
        config = self.get(group)
        if config is not None or not self._may_create(group) or not is_legal_name(group):
            return config
        if self._config.is_slave:
            return SubscriptionGroupConfig(group)
        if self._is_full:
            reason = f"{len(self)} groups exist, {group} was not created"
            self._limits.hit(Limit.CONSUMER_GROUPS, "-", reason)
            return None
        config = SubscriptionGroupConfig(group)
        self.put(config)
        return config

    def advice(self, group: str) -> str:
        """Return what to do about a group that :meth:`find` did not return."""
        if self._may_create(group) and self._is_full:
            return (
                f"create it with mqadmin updateSubGroup, delete others, or raise "
                f"maxSubscriptionGroups: there are {len(self)} groups, so it was not created"
            )
        return "create it with mqadmin updateSubGroup, or set autoCreateSubscriptionGroup=true"

    def notifies(self, group: str) -> bool:
        """Decide whether the consumers of a group are notified when its members change."""
        config = self.get(group)
        return self._config.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group."""
        if self._table.put(config.group_name, config):
            self._notify()

    def replace(self, groups: Mapping[str, SubscriptionGroupConfig], version: DataVersion) -> None:
        """Replace all groups by those of the master at ``version`` of its table."""
        self._table.replace(groups, version)
        for name in _AT_START:
            self._table.add_default(name, SubscriptionGroupConfig(name))
        self._notify()

    def delete(self, group: str) -> bool:
        """Delete a group; return False if there was none."""
        deleted = self._table.delete(group)
        self._notify()
        return deleted

    async def saved(self) -> None:
        """Wait until all changes so far are on the device. Raise StoreError if that fails."""
        await self._table.file.saved()

    async def close(self) -> None:
        """Write pending changes."""
        await self._table.file.close()

    @property
    def data_version(self) -> DataVersion:
        """Version of the table, which changes with every change."""
        return self._table.version

    def values(self) -> dict[str, SubscriptionGroupConfig]:
        """Return all groups by name."""
        return self._table.values()

    def _notify(self) -> None:
        for callback in self.on_change:
            callback()

    @property
    def _is_full(self) -> bool:
        return 0 < self._config.max_subscription_groups <= len(self)

    def _may_create(self, group: str) -> bool:
        return self._config.auto_create_subscription_group or group.startswith(SYSTEM_GROUP_PREFIX)
