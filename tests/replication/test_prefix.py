"""Whether two logs are the same as far as both go."""

import random

from cometmq.replication.prefix import OVERLAP_BYTES, Overlap, first_difference


def test_a_slave_asks_for_a_little_of_what_it_has() -> None:
    assert Overlap(0, 10 << 20).begin == (10 << 20) - OVERLAP_BYTES
    assert Overlap(1 << 20, (1 << 20) + 100).begin == 1 << 20


def test_an_empty_slave_says_so_and_no_other_does() -> None:
    assert Overlap(0, 0).begin == 0
    assert Overlap(0, 100).begin == 1


def test_each_retry_goes_further_back_until_all_was_asked_for() -> None:
    overlap = Overlap(1_000, 10 << 20)
    begins = [overlap.begin]
    while overlap.retry():
        begins.append(overlap.begin)
    assert begins == sorted(begins, reverse=True)
    assert begins[-1] == 1_000
    assert len(begins) < 5


def test_the_first_difference_is_found() -> None:
    chance = random.Random(1)
    for _ in range(300):
        ours = chance.randbytes(chance.randint(1, 300))
        theirs = bytearray(ours)
        assert first_difference(ours, bytes(theirs)) == -1
        places = sorted(chance.sample(range(len(ours)), chance.randint(1, min(3, len(ours)))))
        for place in places:
            theirs[place] ^= 1
        assert first_difference(ours, bytes(theirs)) == places[0]


def test_a_slave_that_has_nothing_asks_from_the_second_byte_and_then_for_all() -> None:
    overlap = Overlap(0, 0, whole=True)
    assert (overlap.begin, overlap.lacks_first_byte) == (1, True)
    assert overlap.retry()
    assert (overlap.begin, overlap.lacks_first_byte) == (0, False)
    assert not overlap.retry()
