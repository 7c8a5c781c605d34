"""What commands print with --output json is what the schema says."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cometmq import BlockingClient
from cometmq.admin.api import Admin
from cometmq.cli.commands.context import whole_schema
from cometmq.cli.main import main
from cometmq.cli.nouns import ENTRIES, load
from cometmq.testing.cluster import Cluster

SCHEMA = whole_schema()
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": (int, float),
}  # fmt: skip
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


KNOWN = {
    "$ref", "type", "properties", "required", "items", "anyOf", "enum", "const", "format",
    "title", "description", "additionalProperties", "$schema", "$defs", "oneOf", "default",
}  # fmt: skip


def check(value: Any, schema: dict[str, Any], where: str = "$") -> None:
    """Raise AssertionError if a value does not have the schema; knows the words that ours uses."""
    assert schema.keys() <= KNOWN, f"{where}: {schema.keys() - KNOWN}"
    if "$ref" in schema:
        check(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]], where)
    elif "anyOf" in schema:
        assert any(fits(value, each, where) for each in schema["anyOf"]), f"{where}: {value!r}"
    else:
        check_plain(value, schema, where)
        if isinstance(value, dict):
            check_object(value, schema, where)
        if isinstance(value, list):
            for at, each in enumerate(value):
                check(each, schema.get("items", {}), f"{where}[{at}]")


def check_plain(value: Any, schema: dict[str, Any], where: str) -> None:
    if "type" in schema:
        kind = TYPES[schema["type"]]
        assert isinstance(value, kind), f"{where}: {value!r} is no {schema['type']}"
        assert schema["type"] == "boolean" or not isinstance(value, bool), where
    if "enum" in schema:
        assert value in schema["enum"], f"{where}: {value!r}"
    if "const" in schema:
        assert value == schema["const"], f"{where}: {value!r}"
    if schema.get("format") == "date-time":
        assert TIME.fullmatch(value), f"{where}: {value!r}"


def check_object(value: dict[str, Any], schema: dict[str, Any], where: str) -> None:
    properties = schema.get("properties", {})
    assert set(schema.get("required", ())) <= value.keys(), f"{where}: {value.keys()}"
    if "title" in schema and properties:
        assert value.keys() <= properties.keys() | {"problem"}, f"{where}: {value.keys()}"
    for name, each in value.items():
        check(each, properties.get(name, {}), f"{where}.{name}")


def fits(value: Any, schema: dict[str, Any], where: str) -> bool:
    try:
        check(value, schema, where)
    except AssertionError:
        return False
    return True


def check_document(document: dict[str, Any]) -> None:
    check(document, {key: each for key, each in SCHEMA.items() if key != "oneOf"})
    name = {"const": document["command"]}
    (own,) = [each for each in SCHEMA["oneOf"] if each["properties"]["command"] == name]
    check(document, own)


def test_every_command_that_prints_rows_is_in_the_schema() -> None:
    named = {each["properties"]["command"]["const"] for each in SCHEMA["oneOf"]}
    wanted = {
        command.name
        for word, entry in ENTRIES.items()
        if entry.module
        for command in load(word).commands.values()
        if command.item_type is not None
    }
    assert named == wanted
    assert len(named) > 60


def test_times_and_addresses_have_their_own_form_everywhere() -> None:
    for name, schema in SCHEMA["$defs"].items():
        for field, each in schema.get("properties", {}).items():
            kinds = each.get("anyOf", [each])
            is_time = any(kind.get("format") == "date-time" for kind in kinds)
            assert is_time == (field.endswith("_at") or field == "at"), f"{name}.{field}"
            if field in ("address", "name_server") or field.endswith("_address"):
                is_address = any(kind.get("$ref", "").endswith("/Address") for kind in kinds)
                assert is_address or field == "white_address", f"{name}.{field}"


def test_a_field_is_a_time_exactly_if_its_name_says_so() -> None:
    seen = 0
    for module in {import_module(entry.module) for entry in ENTRIES.values() if entry.module}:
        for each in vars(module).values():
            if is_dataclass(each) and each.__module__ == module.__name__:
                for field in fields(each):
                    is_time = "datetime" in str(field.type)
                    named = field.name == "at" or field.name.endswith(("_at", "expires"))
                    assert is_time <= named, f"{each}.{field.name}"
                    seen += is_time
    assert seen > 10


READS = [
    "config explain flushDiskType", "config get", "broker stats", "topic stats t",
    "topic order t broker-a=1", "cluster list",
    "cluster health", "broker list", "broker show broker-a",
    "broker config get broker-a", "broker config get broker-a flushDiskType brokerName",
    "broker consumption broker-a", "broker producers", "namesrv config get", "namesrv kv list ns",
    "namesrv kv get ns key", "topic list", "topic list --all", "topic show t", "topic config t",
    "topic route t", "topic groups t", "group list", "group list --all", "group show g",
    "group lag g", "group lag g --topic t", "group members g", "group check g", "group config g",
    "offset show g t", "message browse t", "message show t --key k", "message show t {id}",
    "message show t --queue 0 --offset 0", "message tail t --from first --count 2",
    "message ping t --count 2", "dlq list", "dlq show g", "transaction list",
    "transaction list --all", "trace show {id} --topic t", "context list",
    "group reset g t --to first --dry-run", "offset set g t --to 0 --dry-run",
    "group clone g other t --dry-run", "send t x", "topic create made --queues 1",
    "topic update made --queues 2", "topic permissions made R --yes", "topic delete made --yes",
    "group create fresh", "group update fresh --retries 3", "group delete fresh --yes",
    "namesrv kv put ns more 1", "namesrv kv delete ns more --yes", "broker clean --yes",
    "message copy t {id}", "debug bundle {path}",
    "broker drain broker-a", "broker undrain broker-a", "dlq resend g --dry-run",
    "consume t -g second --count 1 --timeout 20", "context create c -n a:1", "context show c",
    "bench --seconds 0.1 --connections 1 --in-flight 1",
]  # fmt: skip


@pytest.fixture
def places(
    cometmq_cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[dict[str, str]]:
    """A cluster with a topic, a consumer that is connected, and a message."""
    where = cometmq_cluster.namesrv
    with BlockingClient(where, offset_persist_interval_ms=50) as client:
        client.wait(Admin(client.inner.session).create_topic("t", queues=1))
        sent = client.send("t", b"\xff\x00", keys=("k",))
        client.send("t", b"text", keys=("k",))
        with client.subscribe("t", group="g", start="first") as given:
            next(iter(given)).ack()
            assert main(["namesrv", "kv", "put", "ns", "key", "value", "-n", where]) == 0
            capsys.readouterr()
            yield {"id": sent.message_id, "path": str(tmp_path / "b.tar.gz"), "where": where}


def test_the_output_of_commands_has_the_schema(
    places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = set()
    for line in READS:
        words = line.format(**places).split()
        own = words[0] == "context" or words[:2] == ["config", "explain"]
        where = [] if own else ["-n", places["where"]]
        code = main([*words, "-o", "json", *where])
        shown = capsys.readouterr()
        assert code == 0, f"{line}: {shown.err}"
        document = json.loads(shown.out)
        try:
            check_document(document)
        except AssertionError as error:
            raise AssertionError(f"{line}: {error}") from None
        seen.add(document["command"])
    assert len(seen) > 45


def test_a_value_that_breaks_the_schema_is_found() -> None:
    good = {"command": "topic list", "items": [{"topic": "t", "kind": "normal"}]}
    check_document(good)
    for items in (
        [{"topic": 1, "kind": "x"}],
        [{"topic": "t"}],
        [{"topic": "t", "kind": "x", "y": 1}],
    ):
        with pytest.raises(AssertionError):
            check_document({"command": "topic list", "items": items})
