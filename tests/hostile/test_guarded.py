"""Mutated requests of every code to a node with accounts do nothing that is not allowed;
`tests.hostile.guarded` sends more."""

import dataclasses
import json
from pathlib import Path
from random import Random

import pytest

from cometmq.protocol.frame import BINARY, JSON, decode_head
from cometmq.protocol.registry import REGISTRY, Side
from tests.hostile import frames, guarded
from tests.hostile.guarded import State


@pytest.mark.operation
async def test_a_flood_of_a_node_with_accounts_does_nothing(tmp_path: Path) -> None:
    report = await guarded.round_of(tmp_path, 10_000, "1", guarded.WAIT_MAX_MS)
    assert report.problems == []
    assert report.probes > 20
    # The account that may write did so: its requests pass access control.
    assert report.written > 20


@pytest.mark.deep
def test_rounds_go_on_where_they_ended(tmp_path: Path) -> None:
    """`make deep` runs a million."""
    words = ["--seed", "deep", "--state", str(tmp_path / "rounds.txt")]
    assert guarded.main(["50000", *words]) == 0
    assert guarded.main(["100000", *words]) == 0
    lines = (tmp_path / "rounds.txt").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == ["deep/0", "deep/1"]


@pytest.mark.parametrize("side", [Side.BROKER, Side.NAMESRV])
def test_every_code_is_sent_with_both_codecs(side: Side) -> None:
    sent = set()
    for frame in (*frames.requests_of(side), *frames.changing_frames(side)):
        codec, header, _ = frames.parts(frame)
        sent.add((codec, decode_head(codec, header).code))
    for code, spec in REGISTRY.items():
        if spec.side & side:
            assert {(JSON, code), (BINARY, code)} & sent
    made = frames.made_frames(set(REGISTRY))
    codes = {decode_head(*frames.parts(frame)[:2]).code for frame in made}
    assert codes == set(REGISTRY)


def test_a_signature_is_that_of_the_account() -> None:
    frame = frames.made_frames({17})[0]
    _, header, _ = frames.parts(frames.signed_frame(frame, guarded.ALLOWED))
    fields = decode_head(JSON, header).ext
    assert fields["AccessKey"] == "allowed-key"
    again = frames.signed_frame(frame, guarded.WRONG)
    assert decode_head(JSON, frames.parts(again)[1]).ext["Signature"] != fields["Signature"]
    assert frames.signed_frame(b"\0\0\0", guarded.ALLOWED) == b"\0\0\0"


def test_a_seed_makes_the_same_requests_again() -> None:
    one, again = [guarded.requests(Side.BROKER, "broker", Random(5)) for _ in range(2)]
    assert [one() for _ in range(200)] == [again() for _ in range(200)]


BEFORE = State(
    topics={"probe": {"perm": 6}},
    groups={"golden-group": {"retryMaxTimes": 16}},
    offsets={"probe@other": {"0": 1}},
    messages={"probe": 3, "golden": 5},
    texts={"accounts": b"a"},
)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"topics": {"probe": {"perm": 2}}}, "topic 'probe' was"),
        ({"topics": {}}, "topic 'probe' was"),
        ({"topics": {**BEFORE.topics, "new": {}}}, "topic 'new' was None"),
        ({"groups": {}}, "group 'golden-group' was"),
        ({"groups": {**BEFORE.groups, "new": {}}}, "group 'new' was None"),
        ({"offsets": {"probe@other": {"0": 9}}}, "offsets of 'probe@other'"),
        ({"messages": {**BEFORE.messages, "new": 1}}, "topic 'new' has 1 messages"),
        ({"texts": {"accounts": b"b"}}, "accounts changed"),
        ({"texts": {**BEFORE.texts, "more": b"b"}}, "more changed"),
    ],
)
def test_effects_that_are_not_allowed_are_found(changes: dict[str, object], problem: str) -> None:
    (found,) = guarded.effects(BEFORE, dataclasses.replace(BEFORE, **changes))  # type: ignore[arg-type]
    assert problem in found


def test_what_the_account_may_change_is_no_problem() -> None:
    after = dataclasses.replace(
        BEFORE,
        topics={**BEFORE.topics, "%RETRY%golden-group": {}},
        offsets={**BEFORE.offsets, "golden@golden-group": {"0": 3}},
        messages={"probe": 9, "golden": 50, "%RETRY%golden-group": 1},
    )
    assert guarded.effects(BEFORE, after) == []


def test_a_log_with_errors_secrets_or_too_much_is_a_problem() -> None:
    report = guarded.Report(1)
    report.check_log(
        "x ERROR y task failed\nsecret " + guarded.ALLOWED.secret_key + "z" * (2 << 20)
    )
    assert len(report.problems) == 3
