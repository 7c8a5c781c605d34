"""Numbers for texts: those that seals on disk have."""

import pytest

from cometmq.store.tools.queues import text_code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0), ("a", 6110722307022594671), ("orders", 8758467920525159094),
        ("12345678", 5695629170081155616), ("123456789", 1973133179713251253),
        ("ü漢字", 3807544891141705024), ("x" * 127, 7032673357053197818),
        ("t", 5718060554620245086), ("T", -8616676261851277202),
    ],
)  # fmt: skip
def test_a_text_has_its_number(text: str, code: int) -> None:
    assert text_code(text) == code


def test_other_texts_have_other_numbers() -> None:
    texts = [f"{letter * size}" for letter in "ab\0" for size in range(1, 40)]
    assert len(set(map(text_code, texts))) == len(texts)
