"""Writes the tables of docs/settings.md from the declarations of the settings.

Run `python -m scripts.settings_page` after a change of a setting; a test fails if the page differs.
"""

import os.path
from collections.abc import Iterable
from pathlib import Path

from cometmq.broker.config import BrokerConfig
from cometmq.core.javakeys import JAVA_KEYS, JavaKey
from cometmq.core.settings import Declaration, declarations, to_properties, to_wire_name
from cometmq.namesrv.config import NamesrvConfig
from cometmq.store.config import StoreConfig
from scripts.marks import write_tables

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"


def setting_row(key: str, default: str, declared: Declaration) -> str:
    """Return one row of a table of settings."""
    shown = f"`{default}`" if default else ""
    notes = [f"{declared.meaning}"]
    span = declared.range_text()
    if span:
        notes.append(span)
    elif declared.unit:
        notes.append(f"in {declared.unit}")
    if declared.rocketmq:
        notes.append(f"RocketMQ: {declared.rocketmq}")
    more = f" ([more]({declared.see}))" if declared.see else ""
    return f"| `{key}` | {shown} | {'live' if declared.live else ''} | {'; '.join(notes)}{more} |"


def settings_table(config: BrokerConfig | StoreConfig | NamesrvConfig) -> str:
    """Return the table of a configuration, TLS at the end."""
    values, declared = to_properties(config), declarations(type(config))
    names = sorted(declared, key=lambda name: name.startswith("tls"))
    keys = [(to_wire_name(name), declared[name]) for name in names]
    rows = [setting_row(key, values[key], each) for key, each in keys]
    return "\n".join(["| key | default | live | meaning |", "|---|---|---|---|", *rows])


def java_table(keys: Iterable[JavaKey]) -> str:
    """Return the table of keys that have no field."""
    rows = [f"| `{key.name}` | {key.meaning} | {key.reason} |" for key in keys]
    return "\n".join(["| key | in RocketMQ | in CometMQ |", "|---|---|---|", *rows])


def tables() -> dict[str, str]:
    """Return all tables, by the names of their marks."""
    keys = sorted(JAVA_KEYS.values(), key=lambda key: (key.reason, key.name))
    return {
        "broker": settings_table(BrokerConfig()),
        "store": settings_table(StoreConfig()),
        "name server": settings_table(NamesrvConfig()),
        "refused": java_table(key for key in keys if key.accepted),
        "ignored": java_table(key for key in keys if not key.accepted),
    }


def replace_tables(page: str) -> str:
    """Return the page with each table between its marks."""
    return write_tables(page, "scripts/settings_page.py", tables())


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(os.path.relpath(PAGE))
