"""Debug bundle: the state of a cluster in one .tar.gz file, to attach to a request for help.

    manifest.json               when it was made, by which version, and what could not be read
    cluster.json                brokers as each name server knows them
    health.json                 checks of the cluster
    topics.json, groups.json    routes and offsets of topics; settings, members, lag of groups
    brokers/NAME-ID/...         settings and runtime information of each broker
    name-servers/ADDRESS/...    settings of each name server

The values of settings that look like secrets are replaced. No messages and no accounts are
included. The size and number of files are limited. Topics and groups over a limit are left out, and
the manifest says so.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import platform
import sys
import tarfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.admin.groups import Groups
from cometmq.admin.health import check_health
from cometmq.admin.servers import Servers
from cometmq.admin.views import total_lag, without_secrets
from cometmq.core.errors import CometError
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.bodies import ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.fastjson import parse_json

if TYPE_CHECKING:
    from cometmq.admin.api import Admin, Unread

#: Largest file, and largest sum of all files, before compression.
FILE_BYTES_MAX: Final = 4 << 20
BUNDLE_BYTES_MAX: Final = 64 << 20
#: Maximum number of topics, and of groups, whose details are included.
NAMES_MAX: Final = 1_000
#: Maximum number of servers whose files are included.
SERVERS_MAX: Final = 200
_CONCURRENT: Final = 8


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is not in a bundle, and why."""

    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A written bundle: its path, the names of its files, and what it lacks."""

    path: Path
    size_bytes: int
    files: tuple[str, ...]
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class _Contents:
    """Files of a bundle while they are collected."""

    files: dict[str, bytes] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, name: str, value: object) -> None:
        """Add a value as JSON; a file over a limit becomes a gap."""
        data = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=1)
        if len(data) > FILE_BYTES_MAX or self.size_bytes + len(data) > BUNDLE_BYTES_MAX:
            self.gaps.append(Gap(name, f"its {len(data)} bytes exceed a limit of the bundle"))
            return
        self.files[name] = data
        self.size_bytes += len(data)

    async def collect(self, name: str, read: Callable[[], Awaitable[object]]) -> None:
        """Add what a call returns; a failure becomes a gap."""
        try:
            value = await read()
        except CometError as error:
            self.gaps.append(Gap(name, str(error)))
        else:
            self.add(name, value)


async def write_bundle(admin: Admin, path: Path) -> Bundle:
    """Collect the state of a cluster into a new file, which only its owner may read.

    Anything that cannot be read becomes a gap, not an error. Raises OSError, such as
    FileExistsError, if the file cannot be written.
    """
    contents = _Contents()
    await _cluster(admin, contents)
    await contents.collect("health.json", lambda: _health(admin))
    await _servers(admin, contents)
    await contents.collect("topics.json", lambda: _topics(admin, contents.gaps))
    await contents.collect("groups.json", lambda: _groups(admin, contents.gaps))
    now_ms = admin.session.clock.wall_ms()
    contents.add("manifest.json", _manifest(admin, contents, now_ms))
    packed = await asyncio.to_thread(_packed, contents.files, now_ms)
    await asyncio.to_thread(_write, path, packed)
    return Bundle(path, len(packed), tuple(contents.files), tuple(contents.gaps))


def _manifest(admin: Admin, contents: _Contents, now_ms: int) -> dict[str, Any]:
    return {
        "made": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "cometmq": version("cometmq"),
        "python": sys.version,
        "platform": platform.platform(),
        "nameServers": admin.session.config.name_servers,
        "files": sorted(contents.files),
        "gaps": [asdict(gap) for gap in contents.gaps],
    }


async def _cluster(admin: Admin, contents: _Contents) -> None:
    async def view(address: str) -> ClusterInfo | str:
        try:
            response = await admin.call(address, RequestCode.GET_BROKER_CLUSTER_INFO, None)
            return parse_json(response.body, ClusterInfo)
        except CometError as error:
            contents.gaps.append(Gap(f"cluster of name server {address}", str(error)))
            return f"not read: {error}"

    name_servers = admin.session.config.name_servers
    views = await asyncio.gather(*map(view, name_servers))
    contents.add("cluster.json", dict(zip(name_servers, views, strict=True)))


async def _health(admin: Admin) -> list[dict[str, Any]]:
    report = await check_health(admin)
    return [asdict(check) | {"aspect": check.aspect.value} for check in report.checks]


async def _servers(admin: Admin, contents: _Contents) -> None:
    servers = Servers(admin)
    for shown in await servers.name_server_settings():
        folder = f"name-servers/{_file_name(shown.address)}"
        if shown.error is not None:
            contents.gaps.append(Gap(f"{folder}/settings.json", str(shown.error)))
        else:
            contents.add(f"{folder}/settings.json", without_secrets(shown.values))
    try:
        brokers = await admin.brokers()
    except CometError as error:
        contents.gaps.append(Gap("brokers", str(error)))
        return
    if len(brokers) > SERVERS_MAX:
        left_out = len(brokers) - SERVERS_MAX
        contents.gaps.append(Gap("brokers", f"{left_out} of {len(brokers)} are over the limit"))
    for broker in brokers[:SERVERS_MAX]:
        folder = f"brokers/{_file_name(broker.name)}-{broker.broker_id}"
        address = broker.address

        async def settings(address: str = address) -> dict[str, str]:
            return without_secrets(await admin.broker_config(address))

        async def runtime(address: str = address) -> dict[str, str]:
            return dict(sorted((await admin.broker_runtime(address)).items()))

        await contents.collect(f"{folder}/settings.json", settings)
        await contents.collect(f"{folder}/runtime.json", runtime)


async def _topics(admin: Admin, gaps: list[Gap]) -> dict[str, Any]:
    unread: list[Unread] = []

    async def one(topic: str) -> Any:
        route = await admin.topic_route(topic)
        stats = await admin.topic_stats(topic, unread=unread)
        queues = [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min": at.min_offset,
                "max": at.max_offset,
                "lastStoredMs": at.last_update_timestamp,
            }
            for queue, at in stats.items()
        ]
        return {"route": route, "queues": queues}

    # Retry and dead-letter topics come last: they matter least if some must be left out.
    names = await admin.list_topics()
    ordered = sorted(names, key=lambda name: name.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    found = await _each(ordered, one, "topic", gaps)
    gaps += (Gap(f"queues at {each.broker.address}", str(each.error)) for each in unread)
    return found


async def _groups(admin: Admin, gaps: list[Gap]) -> dict[str, Any]:
    groups = Groups(admin)
    unread: list[Unread] = []
    configs = await groups.configs(unread=unread)

    async def one(group: str) -> Any:
        progress = await admin.consumer_progress(group, unread=unread)
        connected = await admin.all_connections(group, unread=unread)
        queues = [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "brokerOffset": at.broker_offset,
                "offset": at.consumer_offset,
                "lastConsumedMs": at.last_timestamp,
            }
            for queue, at in progress.items()
        ]
        return {
            "settings": configs.get(group, {}),
            "members": next(iter(connected.values()), None),
            "lag": total_lag(progress.values()) if progress else None,
            "queues": queues,
        }

    found = await _each(await groups.names(unread=unread), one, "group", gaps)
    gaps += (Gap(f"groups at {each.broker.address}", str(each.error)) for each in unread)
    return found


async def _each(
    names: list[str], read: Callable[[str], Awaitable[Any]], kind: str, gaps: list[Gap]
) -> dict[str, Any]:
    """Return a value by name: None, with a gap, if it cannot be read or is over the limit."""
    if len(names) > NAMES_MAX:
        left_out = len(names) - NAMES_MAX
        gaps.append(Gap(f"{kind}s", f"details of {left_out} of {len(names)}: over the limit"))
    gate = asyncio.Semaphore(_CONCURRENT)

    async def one(name: str) -> Any:
        async with gate:
            try:
                return await read(name)
            except CometError as error:
                gaps.append(Gap(f"{kind} {name}", str(error)))
                return None

    details = await asyncio.gather(*map(one, names[:NAMES_MAX]))
    return dict(zip(names[:NAMES_MAX], details, strict=True)) | dict.fromkeys(names[NAMES_MAX:])


def _file_name(text: str) -> str:
    """Return a name that is one safe part of a path."""
    return "".join(each if each.isalnum() or each in "-_." else "_" for each in text).lstrip(".")


def _packed(files: dict[str, bytes], now_ms: int) -> bytes:
    buffer = io.BytesIO()
    seconds = now_ms // 1000
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=seconds) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as archive,
    ):
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(f"cometmq-bundle/{name}")
            info.size, info.mtime, info.mode = len(data), seconds, 0o600
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)
