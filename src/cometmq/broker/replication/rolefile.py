"""The role of a promoted slave and the address that it took over: ``config/cometmq-role.json``
beside the tables. With it, a later start with the old settings does not become a slave again. Java
brokers ignore the file.

    {"role":"ASYNC_MASTER","sinceMs":1700000000000,"address":"10.0.0.1:10911"}

It overrides settings that say SLAVE, or that lack the address, with a warning in the log. Once the
settings agree with it, the file is removed, and the settings alone count.
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
    """Content of the file."""

    role: BrokerRole
    since_ms: int
    address: str = ""


def role_path(root: str) -> str:
    """Return the path of the role file in a store directory."""
    return os.path.join(root, "config", ROLE_FILE)


def keep_role(
    role: BrokerRole, root: str, files: Files, clock: Clock, *, address: str = ""
) -> None:
    """Store the role in which the broker starts from now on, whatever its settings say, and an
    address that it took over, if any. Durable on return. Raise OSError if it cannot be written."""
    path = role_path(root)
    make_durable_directory(files, os.path.dirname(path))
    kept = msgspec.json.encode(_Kept(role, clock.wall_ms(), address))
    write_file_atomically(files, path, kept, durable=True)


def role_to_begin_in(config: BrokerConfig, root: str, files: Files) -> BrokerConfig:
    """Return the settings, changed to the kept role and address if there are any.

    Raise StoreCorrupt if the file is malformed, OSError if it cannot be read.
    """
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
            f"it does not contain the kept role ({error}): remove the file to use the setting "
            "brokerRole",
        ) from None
    if kept.address and kept.address != config.taken_address:
        log.warning(
            "kept_address_overrides_settings address=%s reason=%r",
            kept.address,
            f"this broker took over the address: set takenAddress={kept.address} in its settings, "
            f"or remove {path} to use the settings",
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
        "kept_role_overrides_settings role=%s settings=SLAVE reason=%r",
        kept.role.name,
        f"this broker was promoted: set brokerRole={kept.role.name} and brokerId=0 in its "
        f"settings, or remove {path} to make it a slave again",
    )
    return replace(config, broker_role=kept.role, broker_id=0)
