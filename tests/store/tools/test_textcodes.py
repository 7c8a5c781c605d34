"""Equal texts have equal numbers, and others do not."""

import numpy as np
import pytest

from cometmq.store.tools.textcodes import text_code, text_codes


@pytest.mark.parametrize("length", [*range(1, 20), 127])
def test_texts_have_codes(length: int) -> None:
    texts = [bytes([65 + n]) * (length - 1) + bytes([97 + n % 3]) for n in range(20)]
    texts += [texts[0], b"x" * (length + 1)]
    raw = bytes(8) + b"".join(b"??" + text for text in texts) + bytes(8)
    at = [10 + n * (length + 2) for n in range(len(texts))]
    lengths = [len(text) for text in texts]
    found = text_codes(np.frombuffer(raw, np.uint8), np.array(at), np.array(lengths)).tolist()
    assert found == [text_code(text) for text in texts]
    assert len(set(found)) == len(set(texts))
