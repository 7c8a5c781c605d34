"""The page of metrics says what the servers show."""

from scripts.metrics_page import PAGE, replace_tables


def test_the_page_is_as_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert replace_tables(page) == page, "run python -m scripts.metrics_page"
