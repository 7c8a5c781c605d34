"""Tables for people, documents for programs."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO, TextIOWrapper
from typing import ClassVar

import pytest
import yaml

from cometmq.cli import render
from cometmq.cli.render import Address, Result
from cometmq.core.errors import CometError

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    max_offset: int
    name: str
    at: datetime | None = None
    address: Address | None = None

    WIDE: ClassVar[tuple[str, ...]] = ("address",)


@dataclass(frozen=True)
class Whole:
    name: str
    rows: list[Row]


ROWS = [Row(5, "a", NOON, Address("::1", 80)), Row(600, "b c")]


def shown(
    capsys: pytest.CaptureFixture[str], form: str, result: Result[Row], does: str = ""
) -> str:
    render.show("thing list", result, form, does=does)
    return capsys.readouterr().out


def test_a_table_has_a_column_for_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "table", Result(ROWS, notes=("lag=1",))).splitlines() == [
        "MAX-OFFSET  NAME  AT",
        "         5  a     2026-01-31T12:00:00.000Z",
        "       600  b c   -",
        "lag=1",
    ]
    wide = shown(capsys, "wide", Result(ROWS)).splitlines()
    assert wide[0].split() == ["MAX-OFFSET", "NAME", "AT", "ADDRESS"]
    assert wide[1].endswith("[::1]:80")


def test_an_empty_table_says_so_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    render.show("thing list", Result([]), "table")
    assert capsys.readouterr() == ("", "none\n")


def test_a_change_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "table", Result(ROWS), does="made").splitlines()
    assert lines[0] == "made max_offset=5 name=a at=2026-01-31T12:00:00.000Z"
    assert lines[1] == 'made max_offset=600 name="b c"'
    wide = shown(capsys, "wide", Result(ROWS), does="made").splitlines()
    assert wide[0] == f"{lines[0]} address=[::1]:80"


def test_programs_get_numbers_times_and_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {
        "command": "thing list",
        "items": [
            {
                "max_offset": 5,
                "name": "a",
                "at": "2026-01-31T12:00:00.000Z",
                "address": {"host": "::1", "port": 80},
            },
            {"max_offset": 600, "name": "b c", "at": None, "address": None},
        ],
    }
    assert json.loads(shown(capsys, "json", Result(ROWS))) == wanted
    assert yaml.safe_load(shown(capsys, "yaml", Result(ROWS))) == wanted
    lines = shown(capsys, "ndjson", Result(ROWS)).splitlines()
    assert [json.loads(line) for line in lines] == wanted["items"]
    failed = json.loads(shown(capsys, "json", Result([], problem="bad")))
    assert failed == {"command": "thing list", "items": [], "problem": "bad"}


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_a_stream_is_the_same_document(
    form: str, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    with render.Stream("thing list", form) as out:
        for row in rows:
            out.add(row)
    streamed = capsys.readouterr().out
    read = json.loads if form == "json" else yaml.safe_load
    whole = read(shown(capsys, form, Result(rows)))
    assert read(streamed) == whole


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("rows", [[], ROWS])
def test_a_stream_that_fails_is_a_document_with_the_problem(
    form: str, rows: list[Row], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with render.Stream("thing list", form) as out:
            for row in rows:
                out.add(row)
            raise CometError('bad: "x"')

    with pytest.raises(CometError):
        fail()
    streamed = capsys.readouterr().out
    read = json.loads if form == "json" else yaml.safe_load
    assert read(streamed) == read(shown(capsys, form, Result(rows, problem='bad: "x"')))


def test_one_value_is_lines_and_tables(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_one(Whole("w", ROWS))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["name:  w", "", "rows:", "MAX-OFFSET  NAME  AT"]


def test_a_table_that_is_piped_is_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    long = "x" * 500
    assert long in shown(capsys, "table", Result([Row(1, long)]))


def test_a_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    rows = [Row(1, "x" * 500, NOON), Row(2, "数" * 50, NOON)]
    lines = shown(capsys, "table", Result(rows)).splitlines()
    assert [render.text_width(line) <= 60 for line in lines] == [True] * 3
    assert lines[1].split()[0] == "1"
    assert "x…" in lines[1]
    monkeypatch.setenv("COLUMNS", "20")
    assert shown(capsys, "table", Result(rows)).splitlines()[:3] == [
        "max-offset: 1",
        "name:       " + "x" * 500,
        "at:         2026-01-31T12:00:00.000Z",
    ]


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = shown(capsys, "table", Result([Row(1, "a\x1b[2Jb\nc")]))
    assert "\x1b" not in table
    assert r"a\x1b[2Jb\nc" in table
    result: Result[Row] = Result([], notes=("a\x1b[2Jb\nc\r",), shown="d\x1b]0;e")
    assert shown(capsys, "table", result) == "d\\x1b]0;e\na\\x1b[2Jb\nc\\r\n"
    assert render.cell({"a\x1b": "b"}) == r"a\x1b=b"
    assert render.cell(Address("a\x1b", 1)) == r"a\x1b:1"
    assert render.one_line("a\x1b[2J\nb") == r"a\x1b[2J b"


@pytest.mark.parametrize("form", ["json", "yaml", "ndjson"])
def test_documents_are_valid_whatever_the_output_can_show(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = BytesIO()
    monkeypatch.setattr("sys.stdout", TextIOWrapper(raw, "latin-1", write_through=True))
    render.show("thing list", Result([Row(1, "数\udc80é")]), form)
    text = raw.getvalue().decode("latin-1")
    (row,) = [json.loads(text)] if form == "ndjson" else yaml.safe_load(text)["items"]
    assert row["name"] == "数\udc80é"


def test_json_has_no_numbers_that_are_none() -> None:
    found = render.to_json({"a": float("nan"), "b": [float("inf"), 1.5]})
    assert found == '{"a":null,"b":[null,1.5]}'


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:10911", Address("10.0.0.1", 10911)),
        ("/10.0.0.1:10911", Address("10.0.0.1", 10911)),
        ("[fe80::1]:80", Address("fe80::1", 80)),
        ("broker-a", None),
        ("", None),
        ("a:b", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert Address.parse(text) == address


def test_times_that_are_unknown_are_none() -> None:
    assert render.when(0) is render.when(-1) is render.when(2**62) is None
    assert render.when(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def test_a_body_is_shown_as_text_where_it_is_text() -> None:
    assert render.body_text("grüße\n".encode()) == "grüße\n"
    assert render.body_text(b"\xff\x00") == "<2 bytes>"
    assert render.body_text(b"\x00\x01") == "<2 bytes>"
    assert render.body_text(b"\xff") == "<1 byte>"
    assert render.body_text(b"x" * 300) == "x" * 200 + "... (300 characters)"
