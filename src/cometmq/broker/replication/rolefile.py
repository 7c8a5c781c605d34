"""The role to which a slave was promoted, kept so that a later start with its old settings does not
make it a slave again, and the address that it took over: ``config/cometmq-role.json`` beside the
tables. A Java broker passes it by.

    {"role":"ASYNC_MASTER","sinceMs":1700000000000,"address":"10.0.0.1:10911"}

It wins over settings that say SLAVE, or that lack the address, with a notice in the log. Once the
settings say the same it goes; from then on they count alone.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.broker.config import BrokerRole
from cometmq.core.errors import StoreCorrupt
from cometmq.store.files import make_durable_directory, read_file, write_file_atomically

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.core.clock import Clock
    from cometmq.store.files import Files

log = logging.getLogger(__name__)

ROLE_FILE: Final = "cometmq-role.json"


class _Kept(msgspec.Struct, rename="camel"):
    """What the file says."""

    role: BrokerRole
    since_ms: int
    address: str = ""


def role_path(root: str) -> str:
    """The file of a store directory."""
    return os.path.join(root, "config", ROLE_FILE)


def keep_role(
    role: BrokerRole, root: str, files: Files, clock: Clock, *, address: str = ""
) -> None:
    """Have a broker begin in a role from now on, whatever its settings say, and with an address
    that it took over if one is given; durable when this returns. Raises OSError."""
    path = role_path(root)
    make_durable_directory(files, os.path.dirname(path))
    kept = msgspec.json.encode(_Kept(role, clock.wall_ms(), address))
    write_file_atomically(files, path, kept, durable=True)


def role_to_begin_in(config: BrokerConfig, root: str, files: Files) -> BrokerConfig:
    """The settings with the role and address that were kept, if any were. Raises StoreCorrupt,
    OSError."""
    path = role_path(root)
    raw = read_file(files, path)
    if raw is None:
        return config
    try:
        kept = msgspec.json.decode(raw, type=_Kept)
    except (ValueError, RecursionError) as error:
        raise StoreCorrupt(
            path,
            -1,
            f"it does not say which role was kept ({error}): remove it to go by brokerRole",
        ) from None
    if kept.address and kept.address != config.taken_address:
        log.warning(
            "kept_address_wins address=%s reason=%r",
            kept.address,
            f"this broker took it over: set takenAddress={kept.address} in its settings, or remove "
            f"{path} to have it go by them",
        )
        config = replace(config, taken_address=kept.address)
    elif not config.is_slave:
        log.info("kept_role_removed path=%s settings=%s", path, config.broker_role.name)
        files.unlink(path)
        files.sync_directory(os.path.dirname(path))
        return config
    if not config.is_slave:
        return config
    log.warning(
        "kept_role_wins role=%s settings=SLAVE reason=%r",
        kept.role.name,
        f"this broker was promoted: set brokerRole={kept.role.name} and brokerId=0 in its "
        f"settings, or remove {path} to have it be a slave again",
    )
    return replace(config, broker_role=kept.role, broker_id=0)
