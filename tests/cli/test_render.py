"""Tables for people, JSON for programs."""

import json
from dataclasses import dataclass

import pytest

from cometmq.cli import render


def test_a_body_is_shown_as_text_where_it_is_text() -> None:
    assert render.body_text("grüße\n".encode()) == "grüße\n"
    assert render.body_text(b"\xff\x00") == "<2 bytes>"
    assert render.body_text(b"\x00\x01") == "<2 bytes>"
    assert render.body_text(b"x" * 300) == "x" * 200 + "... (300 characters)"


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_json([{"a": 1}, {"a": 2}])
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines] == [{"a": 1}, {"a": 2}]


def test_a_table_shows_every_cell_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_table(("name", "count"), [("[bold]a[/bold]", 12_345), ("b", 6)])
    shown = capsys.readouterr().out
    assert "[bold]a[/bold]" in shown
    assert "12,345" in shown


@dataclass(frozen=True)
class Row:
    max_offset: int
    name: str


def test_rows_of_values_are_a_table_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    render.print_rows([Row(5, "a"), Row(6, "b")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["max", "offset", "name"]
    assert [line.split() for line in lines[1:]] == [["5", "a"], ["6", "b"]]
    render.print_rows([])
    assert capsys.readouterr().out == ""
