"""The looker's side: what it answers, the files it lets go of, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from msgspec import structs

from cometmq.core.clock import VirtualClock
from cometmq.store.engine import MessageStore
from cometmq.store.looking import NO_TRAY, TRAY_BYTES, Frames, Look, Seen, frame
from cometmq.store.tools import look
from cometmq.store.tools.look import MAP_AGE_MS, Eyes, requests
from tests.store.stores import opened, put

MESSAGES = 1_500
EXPRESSION = "number >= 100 AND number < 1200"
END_S = 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    made = opened(
        tmp_path, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=60_000
    )
    for number in range(MESSAGES):
        put(made, "t", 0, b"body", more={"number": str(number)})
    made.commit()
    yield made
    made.close()


def request(
    store: MessageStore, expression: str = EXPRESSION, start: int = 0, tray: int = NO_TRAY
) -> Look:
    (file,) = store.log.segments.files
    entries = bytes(store.queue("t", 0).read(start, MESSAGES))
    return Look(expression, file.path, file.base, entries, tray)


@pytest.fixture
def trays() -> Iterator[int]:
    made = os.memfd_create("trays")
    yield made
    os.close(made)


def records_of(store: MessageStore, *numbers: int) -> list[bytes]:
    """As they are stored."""
    found = [store.read("t", 0, number, 1, 1 << 20, None) for number in numbers]
    return [b"".join(each.chunks) for each in found]


def test_it_says_which_match(store: MessageStore) -> None:
    eyes = Eyes(VirtualClock())
    seen = eyes.look(request(store))
    assert seen.numbers == list(range(100, 1_200))
    assert eyes.look(request(store, start=1_000)).numbers == list(range(200))
    assert eyes.look(request(store, "number < 0")).numbers == []


def test_it_lays_the_records_that_match_into_the_tray(store: MessageStore, trays: int) -> None:
    eyes = Eyes(VirtualClock(), trays)
    for tray, first in ((2, 100), (0, 700), (2, 1_197)):
        seen = eyes.look(request(store, f"number >= {first} AND number < 1200", tray=tray))
        wanted = records_of(store, *range(first, 1_200))
        assert seen.numbers == list(range(first, 1_200))
        assert seen.ends == [*accumulate(map(len, wanted))]
        assert os.pread(trays, seen.ends[-1], tray * TRAY_BYTES) == b"".join(wanted)
    assert eyes.look(request(store, "number < 0", tray=1)) == Seen([], [])
    assert eyes.look(request(store, "number < 9")).ends == []


def test_where_it_is_known_what_matches_the_records_are_laid_out(
    store: MessageStore, trays: int
) -> None:
    asked = request(store, "no expression", tray=0)
    known = [1, 5, 1_400]
    seen = Eyes(VirtualClock(), trays).look(structs.replace(asked, known=known))
    assert seen.numbers == known
    assert os.pread(trays, seen.ends[-1], 0) == b"".join(records_of(store, *known))
    zeros = Path(asked.path + ".zeros")
    zeros.write_bytes(bytes(1 << 20))
    gone = structs.replace(asked, known=known, path=str(zeros))
    assert Eyes(VirtualClock(), trays).look(gone) == Seen(None)


def test_what_the_tray_has_no_room_for(
    store: MessageStore, trays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = records_of(store, 100, 101, 102)
    size_bytes = sum(map(len, wanted))
    monkeypatch.setattr(look, "TRAY_BYTES", size_bytes)
    seen = Eyes(VirtualClock(), trays).look(request(store, tray=0))
    assert seen.numbers == list(range(100, 1_200))
    assert seen.ends == [*accumulate(map(len, wanted))]
    assert os.fstat(trays).st_size == size_bytes


def test_many_expressions(store: MessageStore) -> None:
    eyes = Eyes(VirtualClock())
    for number in range(200):
        assert eyes.look(request(store, f"number = {number}", 0)).numbers == [number]


def test_a_file_that_is_gone(store: MessageStore) -> None:
    asked = request(store)
    gone = Look(asked.expression, asked.path + "0", asked.base, asked.entries)
    assert Eyes(VirtualClock()).look(gone).numbers is None
    other = Look(asked.expression, asked.path, asked.base + 1, asked.entries)
    assert Eyes(VirtualClock()).look(other).numbers is None


def maps_of(path: str) -> int:
    return Path("/proc/self/maps").read_text().count(path)


def test_no_map_gets_old(store: MessageStore) -> None:
    clock = VirtualClock()
    eyes, asked = Eyes(clock), request(store)
    before = maps_of(asked.path)
    for _ in range(3):
        eyes.look(asked)
    assert maps_of(asked.path) == before + 1
    os.rename(asked.path, asked.path + ".gone")
    assert eyes.look(asked).numbers is not None
    clock.advance(MAP_AGE_MS + 1)
    assert eyes.look(asked).numbers is None
    assert maps_of(asked.path) == before
    os.rename(asked.path + ".gone", asked.path)


def test_who_waits_long_lets_go_of_all_files(store: MessageStore) -> None:
    eyes, asked = Eyes(VirtualClock()), request(store)
    before = maps_of(asked.path)
    source, target = os.pipe()
    os.write(target, frame(asked))
    found = requests(source, eyes)
    assert eyes.look(next(found)).numbers is not None
    assert maps_of(asked.path) == before + 1
    rests = []
    eyes_rest = eyes.rest

    class Resting(Eyes):
        def rest(self) -> None:
            rests.append(True)
            eyes_rest()
            os.close(target)

    assert list(requests(source, Resting(VirtualClock()))) == []
    assert rests == [True]
    assert maps_of(asked.path) == before
    os.close(source)


def test_other_bytes_than_records(store: MessageStore) -> None:
    asked = request(store)
    zeros = Path(asked.path + ".zeros")
    zeros.write_bytes(bytes(1 << 20))
    eyes = Eyes(VirtualClock())
    assert eyes.look(Look(asked.expression, str(zeros), 0, asked.entries)).numbers is None
    assert maps_of(str(zeros)) == 0


def process(*handles: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "cometmq.store.tools.look", *map(str, handles)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=handles,
    )


def test_a_process_answers_until_its_input_ends(store: MessageStore) -> None:
    with process() as looker:
        assert looker.stdin is not None
        assert looker.stdout is not None
        looker.send_signal(signal.SIGCONT)
        data = b"".join(frame(request(store, f"number < {number}")) for number in range(20))
        answers, _ = looker.communicate(data, timeout=END_S)
        found = [*Frames(Seen).take(answers)]
        assert [seen.numbers for seen in found] == [list(range(number)) for number in range(20)]
        assert looker.returncode == 0


def test_a_process_and_its_trays(store: MessageStore, trays: int) -> None:
    with process(trays) as looker:
        answers, _ = looker.communicate(frame(request(store, tray=3)), timeout=END_S)
        (seen,) = Frames(Seen).take(answers)
        wanted = b"".join(records_of(store, *range(100, 1_200)))
        assert os.pread(trays, seen.ends[-1], 3 * TRAY_BYTES) == wanted


def test_a_process_ends_when_nobody_takes_its_answers(store: MessageStore) -> None:
    with process() as looker:
        assert looker.stdin is not None
        assert looker.stdout is not None
        looker.stdout.close()
        looker.stdin.write(frame(request(store)))
        looker.stdin.flush()
        assert looker.wait(END_S) == 0
