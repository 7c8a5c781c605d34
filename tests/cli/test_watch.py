"""``--watch`` goes on while something is wrong: that is what one watches for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from cometmq.cli.command import Noun
from cometmq.cli.render import Result
from cometmq.core.errors import CometError, NotConnected


@dataclass(frozen=True)
class Row:
    turn: int


def noun_of(turn: Callable[[int], Result[Row]]) -> Noun:
    """A noun with a command that does something else in each turn."""
    noun, turns = Noun("thing", "A thing."), 0

    @noun.command("show", "thing show")
    async def show() -> Result[Row]:
        """Show it."""
        nonlocal turns
        turns += 1
        return turn(turns)

    return noun


def test_it_goes_on_after_a_problem_and_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    def turn(number: int) -> Result[Row]:
        if number == 2:
            raise NotConnected("a:1", "gone\x1b")
        if number == 4:
            raise KeyboardInterrupt
        return Result([Row(number)], problem="bad" if number == 1 else "")

    with pytest.raises(KeyboardInterrupt):
        noun_of(turn).run(["show", "--watch", "0.1", "--json"])
    told = capsys.readouterr()
    assert told.out == '{"turn":1}\n{"turn":3}\n'
    assert told.err == "cometmq thing: bad\ncometmq thing: a:1: gone\\x1b\n"


def test_a_first_turn_that_fails_ends_it() -> None:
    def turn(number: int) -> Result[Row]:
        raise NotConnected("a:1", "gone") if number == 1 else KeyboardInterrupt

    with pytest.raises(CometError, match="gone"):
        noun_of(turn).run(["show", "--watch", "0.1"])
