"""``cometmq acl``: accounts and white lists of access control on brokers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from cometmq.cli.asking import secret_from
from cometmq.cli.command import Noun, Yes, confirm
from cometmq.cli.commands.broker import AppliedRow, BrokerOption, ClusterName, applied, missing
from cometmq.cli.connect import Connected
from cometmq.cli.parser import Argument, Option
from cometmq.cli.render import Address, Result, when
from cometmq.core.errors import CometError, fresh_copy

if TYPE_CHECKING:
    from cometmq.admin.api import Unread

T = TypeVar("T")

acl = Noun("acl", "Access control: accounts, white lists, versions of their files.")

AccessKey = Annotated[str, Argument("ACCESS_KEY", "The name of the account.")]
Perm = Annotated[
    Literal["DENY", "PUB", "SUB", "PUB|SUB", ""],
    Option(metavar="PERM", help="DENY, PUB, SUB or PUB|SUB."),
]


@dataclass(frozen=True, slots=True)
class AccountRow:
    """One account on one broker. Secrets are never shown."""

    broker: str
    access_key: str
    admin: bool
    white_address: str | None
    default_topic: str | None
    default_group: str | None
    topics: list[str]
    groups: list[str]


@dataclass(frozen=True, slots=True)
class WhiteListRow:
    """Global white list of one broker: addresses that need no account."""

    broker: str
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class AclVersionRow:
    """Version of a file of accounts on one broker."""

    broker: str
    address: Address | None
    file: str
    counter: int
    changed_at: datetime | None


@acl.command("accounts", "acl accounts", "acl accounts --broker broker-a -o wide", old=("list",))
async def accounts(
    cluster: Connected, broker: BrokerOption = "", cluster_name: ClusterName = ""
) -> Result[AccountRow]:
    """List the accounts of brokers, without their secrets."""
    unread: list[Unread] = []
    rows = [
        AccountRow(
            each.server, one.access_key, bool(one.admin), one.white_remote_address or None,
            one.default_topic_perm or None, one.default_group_perm or None,
            list(one.topic_perms), list(one.group_perms),
        )
        for each in await cluster.servers.accounts(broker, cluster_name, unread=unread)
        for one in each.accounts
    ]  # fmt: skip
    return _answered(rows, unread)


@acl.command(
    "set",
    "acl set billing --secret-file billing.key --default-topic DENY --topic 'orders=SUB'",
    "acl set ops --admin --secret-file -",
    does="set",
)
async def set_account(
    cluster: Connected,
    access_key: AccessKey,
    secret_file: Annotated[
        str, Option(metavar="FILE", help="File with the secret key; '-' is standard input.")
    ] = "",
    admin: Annotated[bool | None, Option("--admin/--no-admin", help="May it administrate?")] = None,
    white_address: Annotated[
        str | None, Option(metavar="PATTERN", help="Addresses that need no signature.")
    ] = None,
    default_topic: Perm = "",
    default_group: Perm = "",
    topic: Annotated[list[str] | None, Option(metavar="TOPIC=PERM", help="One topic.")] = None,
    group: Annotated[list[str] | None, Option(metavar="GROUP=PERM", help="One group.")] = None,
    broker: BrokerOption = "",
    cluster_name: ClusterName = "",
) -> Result[AppliedRow]:
    """Create an account, or change what is named of it."""
    from cometmq.admin.servers import Account

    account = Account(
        access_key, secret_from(secret_file) or None, white_address, admin, default_topic or None,
        default_group or None, tuple(topic or ()), tuple(group or ()),
    )  # fmt: skip
    return applied(await cluster.servers.put_account(account, broker, cluster_name))


@acl.command("delete", "acl delete billing --yes", does="deleted")
async def delete(
    cluster: Connected,
    access_key: AccessKey,
    broker: BrokerOption = "",
    cluster_name: ClusterName = "",
    yes: Yes = False,
) -> Result[AppliedRow]:
    """Delete an account; its clients are refused from then on."""
    known = await cluster.servers.accounts(broker, cluster_name)
    if not any(one.access_key == access_key for each in known for one in each.accounts):
        raise CometError(f"there is no account {access_key!r}: see cometmq acl accounts")
    confirm(f"Delete account {access_key}?", yes)
    return applied(await cluster.servers.delete_account(access_key, broker, cluster_name))


@acl.command("white-list show", "acl white-list show")
async def white_list(
    cluster: Connected, broker: BrokerOption = "", cluster_name: ClusterName = ""
) -> Result[WhiteListRow]:
    """Show the global white lists of brokers."""
    unread: list[Unread] = []
    rows = [
        WhiteListRow(each.server, list(each.white_list))
        for each in await cluster.servers.accounts(broker, cluster_name, unread=unread)
    ]
    return _answered(rows, unread)


@acl.command("white-list set", "acl white-list set '10.0.0.*' 192.168.1.7 --yes", does="set")
async def set_white_list(
    cluster: Connected,
    patterns: Annotated[list[str], Argument("PATTERN", "Addresses that need no account.")],
    broker: BrokerOption = "",
    cluster_name: ClusterName = "",
    yes: Yes = False,
) -> Result[AppliedRow]:
    """Replace the global white list of brokers."""
    confirm(f"Replace the global white list by {', '.join(patterns)}?", yes)
    return applied(await cluster.servers.set_white_list(patterns, broker, cluster_name))


@acl.command("versions", "acl versions")
async def versions(
    cluster: Connected, broker: BrokerOption = "", cluster_name: ClusterName = ""
) -> Result[AclVersionRow]:
    """Show the versions of the files of accounts on brokers."""
    unread: list[Unread] = []
    rows = [
        AclVersionRow(
            each.server, Address.parse(each.address), file, version.counter,
            when(version.timestamp),
        )
        for each in await cluster.servers.acl_versions(broker, cluster_name, unread=unread)
        for file, version in sorted(each.files.items())
    ]  # fmt: skip
    return _answered(rows, unread)


def _answered(rows: list[T], unread: list[Unread]) -> Result[T]:
    """Return the rows that brokers answered with. Raises the first broker's error if none did."""
    if unread and not rows:
        raise fresh_copy(unread[0].error)
    return Result(rows, problem=missing(unread))
