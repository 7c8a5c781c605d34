"""Queue entries against the log."""

from pathlib import Path

from tests.store.tools.verifying import damage, flip_byte, log_file, verified


def test_every_byte_of_a_queue_entry(unsealed: Path) -> None:
    queue = unsealed / "consumequeue" / "t" / "1"
    path = sorted(queue.iterdir())[0]
    for at in range(20 * 30, 20 * 31):
        flip_byte(path, at)
        (first, *_) = damage(verified(unsealed))
        assert first.path in (str(queue), str(log_file(unsealed, 0)[0])), at
        flip_byte(path, at)
    assert verified(unsealed).is_sound


def test_a_queue_entry_of_a_sealed_file(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    flip_byte(path, 20 * 30 + 19)
    (found,) = damage(verified(sealed))
    assert found.kind == "queue-entry-wrong"
    assert found.path == str(path.parent)
    assert "entry 30" in found.text
    assert "tag code" in found.text


def test_two_entries_that_changed_places(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[100:120], raw[120:140] = raw[120:140], raw[100:120]
    path.write_bytes(raw)
    found = damage(verified(sealed))
    assert [each.kind for each in found] == ["queue-entry-wrong"] * 2
    assert {each.text.partition(": ")[2] for each in found} == {
        "queue offset 5 not 6",
        "queue offset 6 not 5",
    }


def test_entries_that_are_zeros(sealed: Path) -> None:
    path = sorted((sealed / "consumequeue" / "t" / "1").iterdir())[0]
    raw = bytearray(path.read_bytes())
    raw[200:400] = bytes(200)
    path.write_bytes(raw)
    found = damage(verified(sealed))
    assert {each.kind for each in found} == {"queue-entry-missing", "record-without-entry"}
    assert "10 records (queue offsets 10 to 19)" in found[-1].text + found[0].text
