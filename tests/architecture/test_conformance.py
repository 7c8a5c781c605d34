"""Every line of what RocketMQ's clients can do has its proofs, and the page says which."""

import pytest

from scripts import conformance_page as page


@pytest.fixture(scope="module")
def proofs() -> list[page.Proof]:
    return page.collect()


def test_no_line_lacks_its_proof(proofs: list[page.Proof]) -> None:
    assert page.lacking(proofs) == []


def test_a_lack_is_noticed(proofs: list[page.Proof]) -> None:
    without = [each for each in proofs if (each.line, each.client) != ("batch", "5.5.0")]
    assert page.lacking(without) == ["batch: 5.5.0 on CometMQ"]


def test_the_page_is_written_anew(proofs: list[page.Proof]) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.replace_tables(text, page.tables(proofs)), (
        "run .venv/bin/python -m scripts.conformance_page"
    )
