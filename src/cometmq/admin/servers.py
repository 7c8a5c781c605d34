"""Operations on brokers and name servers: settings, tables, clean-ups, statistics and accounts.

A change goes to several servers, which do not know of each other. It returns one :class:`Applied`
for each, with an error if that server did not make the change, so a tool can report which servers
have changed. Names of brokers, clusters and settings that do not exist raise NotFound before
anything is sent. Java servers ignore settings that they do not have; these methods refuse them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from msgspec import structs

from cometmq.admin.failover import drain, undrain
from cometmq.core.errors import (
    BrokerRefused,
    ClientError,
    CometError,
    NotFound,
    RouteNotFound,
    SettingsError,
)
from cometmq.core.settings import format_properties, parse_properties
from cometmq.protocol import headers as h
from cometmq.protocol.bodies import (
    AclConfig,
    BrokerConsumeStatsRead,
    BrokerStatsData,
    ConsumeStatsRead,
    DataVersion,
    KvTable,
    TopicConfigTable,
    TopicList,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.fastjson import parse_json
from cometmq.protocol.fields import from_ext

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Broker, Unread
    from cometmq.admin.failover import Told
    from cometmq.protocol.bodies import AccountEntry, BrokerStatsItem
    from cometmq.protocol.frame import Response

#: Namespace of the queues of ordered topics (upstream: NamesrvUtil.java).
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
#: Timeout of requests that may delete files or topics, which takes time.
_CLEAN_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Applied:
    """Outcome of a change on one server; ``error`` is None if the server made it."""

    server: str
    address: str
    error: CometError | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of one server; empty with an ``error`` if it did not show them."""

    server: str
    address: str
    values: dict[str, str]
    error: CometError | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """Account of access control; permissions are texts such as ``topicA=PUB|SUB``.

    In a change, None and an empty list leave a value as it is. CometMQ shows no secrets.
    """

    access_key: str
    secret_key: str | None = field(default=None, repr=False)
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerAccounts:
    """Accounts and global white list of one broker."""

    server: str
    address: str
    accounts: tuple[Account, ...]
    white_list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AclVersions:
    """Versions of the files of access control on one broker, by path."""

    server: str
    address: str
    default: DataVersion
    files: dict[str, DataVersion]


@dataclass(frozen=True, slots=True)
class GroupConsumption:
    """Progress of one group in one topic, as a broker reports it."""

    group: str
    stats: ConsumeStatsRead


@dataclass(frozen=True, slots=True)
class Rate:
    """Sum over a time window, and its average per second."""

    sum: int
    per_second: float


_NO_RATE: Final = Rate(0, 0.0)


@dataclass(frozen=True, slots=True)
class Traffic:
    """One statistic, summed over brokers, for the last minute, hour and day.

    Brokers take samples, so a window may lack the latest 10 s, 10 minutes or hour.
    """

    minute: Rate = _NO_RATE
    hour: Rate = _NO_RATE
    day: Rate = _NO_RATE

    @property
    def longest_sum(self) -> int:
        """Sum of the longest window that is not empty, as ``mqadmin statsAll`` shows it."""
        return self.day.sum or self.hour.sum or self.minute.sum


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Messages and bytes that a group got from a topic, and messages that it sent back."""

    got: Traffic
    got_bytes: Traffic
    sent_back: Traffic


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """Messages and bytes that were put into a topic, and what its groups got."""

    topic: str
    put: Traffic
    put_bytes: Traffic
    groups: dict[str, GroupTraffic]


@dataclass(frozen=True, slots=True)
class BrokerTraffic:
    """Messages that were put on and got from one broker."""

    server: str
    address: str
    put: Traffic
    got: Traffic


class Servers:
    """Operations on servers: ``Servers(admin)``.

    ``broker`` is a broker name or an address, ``cluster`` a cluster name; without both, all brokers
    are meant. All methods raise NotConnected or RequestTimedOut when a name server cannot be
    reached.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers of the session."""
        return tuple(self._admin.session.config.name_servers)

    # ------------------------------------------------------------------ settings

    async def broker_settings(self, broker: str = "", cluster: str = "") -> list[ServerSettings]:
        """Return the settings of brokers, slaves included."""
        found = await self._admin.find_brokers(broker, cluster)
        code = RequestCode.GET_BROKER_CONFIG
        return list(await asyncio.gather(*(self._shown(b.name, b.address, code) for b in found)))

    async def name_server_settings(self) -> list[ServerSettings]:
        """Return the settings of all name servers."""
        code = RequestCode.GET_NAMESRV_CONFIG
        shown = (self._shown("name server", address, code) for address in self.name_servers)
        return list(await asyncio.gather(*shown))

    async def update_brokers(
        self, values: Mapping[str, str], broker: str = "", cluster: str = ""
    ) -> list[Applied]:
        """Change settings of running brokers. Raises NotFound for a setting that one lacks."""
        shown = await self.broker_settings(broker, cluster)
        return await self._update(values, shown, RequestCode.UPDATE_BROKER_CONFIG)

    async def update_name_servers(self, values: Mapping[str, str]) -> list[Applied]:
        """Change settings of all name servers. Raises NotFound for a setting that one lacks."""
        shown = await self.name_server_settings()
        return await self._update(values, shown, RequestCode.UPDATE_NAMESRV_CONFIG)

    async def _shown(self, server: str, address: str, code: RequestCode) -> ServerSettings:
        try:
            response = await self._admin.call(address, code, None)
            values = parse_properties(response.body.decode("utf-8", "replace"))
        except CometError as error:
            return ServerSettings(server, address, {}, error)
        return ServerSettings(server, address, values)

    async def _update(
        self, values: Mapping[str, str], shown: Sequence[ServerSettings], code: RequestCode
    ) -> list[Applied]:
        for each in shown:
            unknown = sorted(set(values).difference(each.values)) if each.error is None else []
            if unknown:
                near = get_close_matches(unknown[0], list(each.values), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                problem = f"{each.server} at {each.address} does not have it{hint}"
                raise NotFound("setting", unknown[0], problem)
        for key, value in values.items():
            if len(f"{key}={value}".splitlines()) > 1:  # a second line would be another setting
                raise SettingsError(key, "a value is one line")
        body = format_properties(values).encode()

        async def update(settings: ServerSettings) -> Applied:
            if settings.error is not None:
                return Applied(settings.server, settings.address, settings.error)
            return await self._apply(
                settings.server,
                settings.address,
                lambda: self._admin.call(settings.address, code, None, body),
            )

        return list(await asyncio.gather(*map(update, shown)))

    # ------------------------------------------------------------------ key-value tables

    async def kv_table(self, namespace: str) -> dict[str, str]:
        """Return a namespace of the key-value tables of one name server that responds.

        Empty if the name server has no such namespace.
        """
        header = h.KvNamespace(namespace)
        try:
            response = await self._admin.ask_name_server(
                RequestCode.GET_KVLIST_BY_NAMESPACE, header
            )
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return dict(sorted(parse_json(response.body, KvTable).table.items()))

    async def kv_value(self, namespace: str, key: str) -> str:
        """Return one value. Raises NotFound."""
        header = h.KvKey(namespace, key)
        try:
            response = await self._admin.ask_name_server(RequestCode.GET_KV_CONFIG, header)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                problem = f"namespace {namespace!r} of the name servers does not have it"
                raise NotFound("key", key, problem) from None
            raise
        return from_ext(h.KvValueResponse, response.ext).value or ""

    async def put_kv(self, namespace: str, key: str, value: str) -> list[Applied]:
        """Set a value on all name servers."""
        return await self._on_name_servers(
            RequestCode.PUT_KV_CONFIG, h.PutKvConfig(namespace, key, value)
        )

    async def delete_kv(self, namespace: str, key: str) -> list[Applied]:
        """Delete a value on all name servers."""
        return await self._on_name_servers(RequestCode.DELETE_KV_CONFIG, h.KvKey(namespace, key))

    async def set_order(self, topic: str, queues: Mapping[str, int]) -> list[Applied]:
        """Set the queues of an ordered topic: their number by broker name.

        Producers use them if ``orderMessageEnable`` is set on the name servers.
        """
        text = ";".join(f"{broker}:{count}" for broker, count in queues.items())
        return await self.put_kv(ORDER_NAMESPACE, topic, text)

    # ------------------------------------------------------------------ topics on brokers

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics on the brokers of a cluster, sorted. Raises NotFound."""
        await self._admin.find_brokers(cluster=cluster)
        response = await self._admin.ask_name_server(
            RequestCode.GET_TOPICS_BY_CLUSTER, h.Cluster(cluster)
        )
        return sorted(parse_json(response.body, TopicList).topic_list)

    async def clusters_of(self, topic: str) -> list[str]:
        """Return the clusters that have a topic, sorted. Raises RouteNotFound."""
        route = await self._admin.topic_route(topic)
        return sorted({broker.cluster for broker in route.broker_datas})

    async def set_topic_perm(
        self, topic: str, perm: int, broker: str = "", cluster: str = ""
    ) -> list[Applied]:
        """Set the permission of a topic on the masters that have it: 2 write, 4 read, 6 both.

        Raises RouteNotFound when none of them has the topic.
        """

        async def change(each: Broker) -> Applied | None:
            try:
                config = await self._admin.topic_config(each.address, topic)
            except ClientError as error:
                return Applied(each.name, each.address, error)
            if config is None:
                return None
            header = h.CreateTopic(
                topic=topic,
                default_topic=topic,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=perm,
                topic_filter_type=config.topic_filter_type,
                topic_sys_flag=config.topic_sys_flag,
                order=config.order,
            )
            return await self._on_broker(each, RequestCode.UPDATE_AND_CREATE_TOPIC, header)

        found = await self._admin.find_brokers(broker, cluster, masters_only=True)
        outcomes = [each for each in await asyncio.gather(*map(change, found)) if each]
        if not outcomes:
            raise RouteNotFound(topic, "no master of those has it")
        return outcomes

    async def topic_configs(self, broker: str) -> TopicConfigTable:
        """Return the settings of all topics on the master of a broker. Raises NotFound."""
        (each, *_) = await self._admin.find_brokers(broker, masters_only=True)
        response = await self._admin.call(each.address, RequestCode.GET_ALL_TOPIC_CONFIG, None)
        return parse_json(response.body, TopicConfigTable)

    async def stop_writes(self, broker_name: str) -> list[Told]:
        """Remove the write permission of a broker's topics from all name servers' routes."""
        await self._admin.find_brokers(broker_name)
        return await drain(self._admin.session, broker_name)

    async def allow_writes(self, broker_name: str) -> list[Told]:
        """Add the write permission of a broker's topics to all name servers' routes again."""
        await self._admin.find_brokers(broker_name)
        return await undrain(self._admin.session, broker_name)

    # ------------------------------------------------------------------ clean-ups

    async def delete_expired_queues(self, broker: str = "", cluster: str = "") -> list[Applied]:
        """Delete the files of consume queues whose messages are no longer in the log."""
        return await self._on_brokers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, broker, cluster)

    async def delete_expired_log(self, broker: str = "", cluster: str = "") -> list[Applied]:
        """Delete expired log files at once, instead of at the configured hour."""
        return await self._on_brokers(RequestCode.DELETE_EXPIRED_COMMITLOG, broker, cluster)

    async def delete_unused_topics(self, broker: str = "", cluster: str = "") -> list[Applied]:
        """Delete the consume queues of topics that brokers no longer have."""
        return await self._on_brokers(RequestCode.CLEAN_UNUSED_TOPIC, broker, cluster)

    # ------------------------------------------------------------------ consumption

    async def consumption(self, broker: str, *, ordered: bool = False) -> list[GroupConsumption]:
        """Return the progress of each group in each topic on the master of a broker.

        With ``ordered``, only topics that are marked as ordered are included, otherwise only the
        others. Raises NotFound.
        """
        (each, *_) = await self._admin.find_brokers(broker, masters_only=True)
        code, header = RequestCode.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStats(ordered)
        response = await self._admin.call(each.address, code, header, timeout_ms=_CLEAN_TIMEOUT_MS)
        found = parse_json(response.body, BrokerConsumeStatsRead).consume_stats_list
        return [
            GroupConsumption(group, stats)
            for row in found
            for group, every in row.items()
            for stats in every
        ]

    # ------------------------------------------------------------------ statistics

    async def topic_traffic(self, topic: str) -> TopicTraffic:
        """Return the traffic into a topic and out of it to each group. Raises RouteNotFound."""
        masters = await self._admin.masters_of(topic)
        groups = await self._admin.groups_of(topic)

        async def of(name: str, key: str = topic) -> Traffic:
            return await self.traffic(name, key, masters)

        return TopicTraffic(
            topic,
            await of("TOPIC_PUT_NUMS"),
            await of("TOPIC_PUT_SIZE"),
            {
                group: GroupTraffic(
                    await of("GROUP_GET_NUMS", f"{topic}@{group}"),
                    await of("GROUP_GET_SIZE", f"{topic}@{group}"),
                    await of("SNDBCK_PUT_NUMS", f"{topic}@{group}"),
                )
                for group in groups
            },
        )

    async def broker_traffic(
        self, broker: str = "", cluster: str = "", *, unread: list[Unread] | None = None
    ) -> list[BrokerTraffic]:
        """Return the messages put on and got from each broker, slaves included."""

        async def ask(each: Broker) -> BrokerTraffic:
            put = await self.traffic("BROKER_PUT_NUMS", each.cluster, [each])
            got = await self.traffic("BROKER_GET_NUMS", each.cluster, [each])
            return BrokerTraffic(each.name, each.address, put, got)

        found = await self._admin.find_brokers(broker, cluster)
        return list((await self._admin.ask_together(found, ask, unread)).values())

    async def traffic(self, name: str, key: str, brokers: Sequence[Broker]) -> Traffic:
        """Return a statistic, summed over brokers, by RocketMQ's ``name`` and ``key`` of it.

        A broker that has counted nothing under this name and key adds nothing (upstream:
        BrokerStatsManager.java).
        """
        header = h.ViewBrokerStatsData(name, key)

        async def ask(each: Broker) -> BrokerStatsData | None:
            code = RequestCode.VIEW_BROKER_STATS_DATA
            try:
                response = await self._admin.call(each.address, code, header)
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.SYSTEM_ERROR:
                    raise
                return None
            return parse_json(response.body, BrokerStatsData)

        total = Traffic()
        for found in (await self._admin.ask_together(brokers, ask)).values():
            if found is None:
                continue
            total = Traffic(
                _added(total.minute, found.stats_minute),
                _added(total.hour, found.stats_hour),
                _added(total.day, found.stats_day),
            )
        return total

    # ------------------------------------------------------------------ access control

    async def accounts(
        self, broker: str = "", cluster: str = "", *, unread: list[Unread] | None = None
    ) -> list[BrokerAccounts]:
        """Return the accounts of brokers. Raises BrokerRefused where access control is off."""

        async def ask(each: Broker) -> BrokerAccounts:
            code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
            response = await self._admin.call(each.address, code, None)
            config = parse_json(response.body, AclConfig)
            accounts = tuple(map(_account, config.plain_access_configs))
            patterns = tuple(config.global_white_addrs)
            return BrokerAccounts(each.name, each.address, accounts, patterns)

        found = await self._admin.find_brokers(broker, cluster)
        return list((await self._admin.ask_together(found, ask, unread)).values())

    async def acl_versions(
        self, broker: str = "", cluster: str = "", *, unread: list[Unread] | None = None
    ) -> list[AclVersions]:
        """Return the versions of the account files of brokers."""

        async def ask(each: Broker) -> AclVersions:
            code = RequestCode.GET_BROKER_CLUSTER_ACL_INFO
            response = await self._admin.call(each.address, code, None)
            header = from_ext(h.AclVersionResponse, response.ext)
            files = parse_json(
                (header.all_acl_file_version or "{}").encode(), dict[str, DataVersion]
            )
            default = parse_json(header.version.encode(), DataVersion)
            return AclVersions(each.name, each.address, default, files)

        found = await self._admin.find_brokers(broker, cluster)
        return list((await self._admin.ask_together(found, ask, unread)).values())

    async def put_account(
        self, account: Account, broker: str = "", cluster: str = ""
    ) -> list[Applied]:
        """Create an account on brokers, slaves included, or change the values that are set."""
        header = h.ChangeAccount(
            account.access_key,
            account.secret_key,
            account.white_remote_address,
            account.admin,
            account.default_topic_perm,
            account.default_group_perm,
            ",".join(account.topic_perms) or None,
            ",".join(account.group_perms) or None,
        )
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        return await self._on_brokers(code, broker, cluster, header)

    async def delete_account(
        self, access_key: str, broker: str = "", cluster: str = ""
    ) -> list[Applied]:
        """Delete an account on brokers, slaves included."""
        header = h.AccountKey(access_key)
        return await self._on_brokers(RequestCode.DELETE_ACL_CONFIG, broker, cluster, header)

    async def set_white_list(
        self, patterns: Iterable[str], broker: str = "", cluster: str = "", *, path: str = ""
    ) -> list[Applied]:
        """Replace the global white list of brokers, in the account file ``path`` or the default."""
        header = h.ChangeWhiteList(",".join(patterns), path or None)
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        return await self._on_brokers(code, broker, cluster, header)

    # ------------------------------------------------------------------ parts

    async def _on_brokers(
        self, code: RequestCode, broker: str, cluster: str, header: h.Header | None = None
    ) -> list[Applied]:
        found = await self._admin.find_brokers(broker, cluster)
        return list(await asyncio.gather(*(self._on_broker(each, code, header) for each in found)))

    async def _on_broker(
        self, broker: Broker, code: RequestCode, header: h.Header | None
    ) -> Applied:
        return await self._apply(
            broker.name,
            broker.address,
            lambda: self._admin.call(broker.address, code, header, timeout_ms=_CLEAN_TIMEOUT_MS),
        )

    async def _on_name_servers(self, code: RequestCode, header: h.Header) -> list[Applied]:
        async def apply(address: str) -> Applied:
            return await self._apply(
                "name server", address, lambda: self._admin.call(address, code, header)
            )

        return list(await asyncio.gather(*map(apply, self.name_servers)))

    async def _apply(
        self, server: str, address: str, call: Callable[[], Awaitable[Response]]
    ) -> Applied:
        try:
            await call()
        except ClientError as error:
            return Applied(server, address, error)
        return Applied(server, address)


def _added(rate: Rate, item: BrokerStatsItem) -> Rate:
    return Rate(rate.sum + item.sum, rate.per_second + item.tps)


def _account(entry: AccountEntry) -> Account:
    values = structs.asdict(entry)
    values["topic_perms"] = tuple(entry.topic_perms or ())
    values["group_perms"] = tuple(entry.group_perms or ())
    return Account(**values)
