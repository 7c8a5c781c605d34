"""One table of request codes, complete and documented."""

from pathlib import Path

from cometmq.broker.app import Broker
from cometmq.cli.node import node_config
from cometmq.core.clock import SystemClock, VirtualClock
from cometmq.namesrv.app import NameServer
from cometmq.namesrv.config import NamesrvConfig
from cometmq.net.router import Router
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.registry import REGISTRY, Side
from scripts import mqadmin_page
from scripts.wire_page import BEGIN, END, PAGE, code_table, replace_table

NAME_SERVER = {*range(100, 107), 205, 206, 216, 219, 224, 304, 322, 327}
BROKER = {
    *(10, 310, 320, 11, 12, 14, 15, 17, 21, 25, 26, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38),
    *(41, 42, 46, 200, 201, 202, 203, 204, 208, 215, 222, 223, 300, 303, 305, 307, 308, 309, 314),
    *(317, 324, 325, 328),
}
CLIENT = {39, 40, 220, 221, 307, 309, 326}


def served_by(side: Side) -> set[int]:
    return {code for code, spec in REGISTRY.items() if side in spec.side}


def handled_by(router: Router) -> set[int]:
    return set(router._loop_handlers) | set(router._task_handlers)


def test_every_code_with_a_name_has_a_row() -> None:
    assert set(RequestCode) == set(REGISTRY)


def test_every_promised_code_is_served() -> None:
    assert served_by(Side.NAMESRV) >= NAME_SERVER
    assert served_by(Side.BROKER) >= BROKER
    assert served_by(Side.CLIENT) >= CLIENT


def test_the_name_server_handles_its_codes(tmp_path: Path) -> None:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kvConfig.json"))
    server = NameServer(config, VirtualClock())
    assert handled_by(server.router) == served_by(Side.NAMESRV)


async def test_the_broker_handles_its_codes(tmp_path: Path) -> None:
    config = node_config(
        tmp_path,
        {"mappedFileSizeCommitLog": "1048576", "namesrvAddr": ""},
        namesrv_port=0,
        broker_port=0,
        bind="127.0.0.1",
    )
    broker = Broker(config.broker, config.store, SystemClock())
    await broker.start()
    try:
        assert handled_by(broker.router) == served_by(Side.BROKER)
    finally:
        await broker.stop()


def test_a_row_stands_under_its_own_code() -> None:
    assert [code for code, spec in REGISTRY.items() if spec.code != code] == []


def test_the_wire_page_lists_every_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition(BEGIN)[2].partition(END)[0].strip()
    assert table == code_table(), "run .venv/bin/python -m scripts.wire_page"


def test_the_mqadmin_page_lists_every_command() -> None:
    text = mqadmin_page.PAGE.read_text(encoding="utf-8")
    assert mqadmin_page.replace_table(text) == text, "run .venv/bin/python -m scripts.mqadmin_page"


def test_the_code_table_has_a_row_for_each_code() -> None:
    rows = code_table().splitlines()[2:]
    assert [int(row.split("|")[1]) for row in rows] == sorted(REGISTRY)


def test_a_missing_row_is_found() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    renewed = replace_table(page, "| new |")
    assert renewed == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
