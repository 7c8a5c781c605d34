"""Java's string hash and the index's key hashes: the definition, and with the compiled core."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.speedups.plain import hashing as plain

texts = st.one_of(
    st.text("abcXYZ019\0\x7f", max_size=140),
    st.text(max_size=40),
    st.text(st.characters(categories=["Cs", "So", "Lo", "Ll"]), max_size=40),
    st.builds(str.__mul__, st.text(min_size=1, max_size=4), st.integers(0, 5_000)),
)
prefixes = st.one_of(st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("标签", 857175),
        ("😀", 1772899),
        ("\ud83d\ude00", 1772899),
    ],
)
def test_hash_is_javas(core: SimpleNamespace, text: str, value: int) -> None:
    assert core.java_hash(text) == value


@given(texts)
def test_hash_is_a_polynomial_over_utf16(text: str) -> None:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[at : at + 2], "big") for at in range(0, len(raw), 2)]
    value = 0
    for unit in units:
        value = (value * 31 + unit) % 2**32
    found = plain.java_hash(text)
    assert found % 2**32 == value
    assert -(2**31) <= found < 2**31


def test_hashes_of_no_keys(core: SimpleNamespace) -> None:
    assert core.index_hashes([], []) == []


def test_smallest_hash_is_zero(core: SimpleNamespace) -> None:
    assert core.index_hashes([0] * 9, ["polygenelubricants"] * 9) == [0] * 9


def test_each_key_needs_a_prefix(core: SimpleNamespace) -> None:
    for count in (0, 1, 3):
        with pytest.raises(ValueError, match=f"{count} prefixes for 2 keys"):
            core.index_hashes([7] * count, ["a", "b"])


@pytest.mark.parametrize("wrong", [None, b"key", 5, ["key"]])
def test_a_key_is_text(core: SimpleNamespace, wrong: object) -> None:
    with pytest.raises((TypeError, AttributeError)):
        core.java_hash(wrong)
    with pytest.raises((TypeError, AttributeError)):
        core.index_hashes([0], [wrong])


@given(text=texts, prefix=prefixes)
def test_hashes_are_as_defined(core: SimpleNamespace, text: str, prefix: int) -> None:
    assert core.java_hash(text) == plain.java_hash(text)
    assert core.index_hashes([prefix], [text]) == plain.index_hashes([prefix], [text])


@given(rows=st.lists(st.tuples(prefixes, texts), max_size=40))
def test_hashes_of_many_are_as_defined(core: SimpleNamespace, rows: list[tuple[int, str]]) -> None:
    heads, keys = [prefix for prefix, _ in rows], [key for _, key in rows]
    assert core.index_hashes(heads, keys) == plain.index_hashes(heads, keys)
