"""`kill -9` under load, thirty times over; `python -m tests.operation.kills 500` does it deeper."""

from pathlib import Path

import pytest

from cometmq.message import properties
from cometmq.message.record import Record
from tests.operation import kills
from tests.operation.kills import Outcome, Round, Sent, check_queues

#: A seed with SYNC_FLUSH and files of megabytes, and one with ASYNC_FLUSH and small ones.
CAMPAIGNS = ((0, 15), (1, 15))


@pytest.mark.parametrize(("seed", "count"), CAMPAIGNS)
async def test_acknowledged_messages_survive_kills(tmp_path: Path, seed: int, count: int) -> None:
    outcome = await kills.campaign(tmp_path, seed, count)
    assert outcome.kills == count
    assert outcome.unanswered >= count


def test_campaigns_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    async def campaign(directory: Path, seed: int, count: int) -> Outcome:
        ran.append(seed)
        if seed == 1 and len(ran) == 2:
            raise AssertionError("lost")
        return Outcome(count, 2, 1_000, 300)

    monkeypatch.setattr(kills, "campaign", campaign)
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(tmp_path / prefix))
    (tmp_path / "cometmq-kills-0-").mkdir()
    (tmp_path / "cometmq-kills-2-").mkdir()
    state = tmp_path / "state"
    assert kills.main(["25", "--state", str(state), "--seconds", "-1"]) == 3
    assert ran == []
    assert kills.main(["25", "--state", str(state)]) == 0
    assert kills.main(["75", "--state", str(state)]) == 1
    assert ran == [0, 1, 2]
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == (
        "50 of 75 kills and 4 killed starts, 2000 sends acknowledged and 600 not, "
        "1 campaigns failed"
    )
    assert kills.main(["75", "--state", str(state)]) == 1
    assert ran == [0, 1, 2]


@pytest.mark.parametrize("plant", ["lost", "doubled", "swapped", "damaged"])
def test_the_check_finds_what_it_is_for(plant: str) -> None:
    """The check itself: a queue that lost, doubled, swapped or damaged a message is refused."""
    sent = [Sent(f"r00m{number:06d}", 0, b"body%d" % number) for number in range(6)]
    round_ = Round(sent, {message.key: offset for offset, message in enumerate(sent)})
    records = [stored(offset, message) for offset, message in enumerate(sent)]
    check_queues([round_], [list(records)])
    if plant == "lost":
        records.pop()
    elif plant == "doubled":
        records.append(stored(6, sent[5]))
    elif plant == "swapped":
        records[1:3] = [stored(1, sent[2]), stored(2, sent[1])]
    else:
        records[3] = stored(3, Sent(sent[3].key, 0, b"other"))
    with pytest.raises(AssertionError):
        check_queues([round_], [records])


def stored(offset: int, message: Sent) -> Record:
    text = properties.encode({properties.KEYS: message.key})
    host = bytes(8)
    return Record(
        0,
        0,
        message.queue_id,
        0,
        offset,
        0,
        0,
        0,
        host,
        0,
        host,
        0,
        0,
        message.body,
        kills.TOPIC,
        text,
    )
