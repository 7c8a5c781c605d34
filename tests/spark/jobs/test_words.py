"""Sizes and spans of time as people write them."""

import pytest

from cometmq.spark.jobs.job import size_bytes, span_ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("128MB", 128_000_000), ("64Mi", 64 << 20), ("2 GiB", 2 << 30), ("3k", 3_000)],
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "span"), [("500ms", 500), ("30s", 30_000), ("2 h", 7_200_000), ("7d", 604_800_000)]
)
def test_spans(text: str, span: int) -> None:
    assert span_ms(text) == span


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5s", "3 weeks"])
def test_neither(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        size_bytes(text)
    with pytest.raises(ValueError, match="is not a duration such as"):
        span_ms(text)
