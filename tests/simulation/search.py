"""Searches over the seeds of a simulation. A state file lets a search continue where it stopped:

    # <hash of the program>
    17 passed
    18 failed Violated: consumed

A seed that passed with another program has to be run again, so the file starts over then.
"""

from __future__ import annotations

import argparse
import gc
import traceback
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final, TypeAlias

import cometmq
from cometmq.core.clock import SystemClock

#: Runs a seed. Returns a line that describes the run, then its trace. Raises what went wrong.
RunSeed: TypeAlias = Callable[[int], Sequence[str]]

_PASSED: Final = "passed"
_FAILED: Final = "failed"
#: Folders whose code decides what a seed does.
_PROGRAM: Final = Path(cometmq.__file__).parent, Path(__file__).parent
_REPORT_EVERY: Final = 100
_COLLECT_EVERY: Final = 20


def program_hash(folders: Iterable[Path] = _PROGRAM) -> str:
    """Return a hash of all Python files under ``folders``, except for files of tests."""
    found = blake2b(digest_size=8)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if not path.name.startswith("test_"):
                found.update(path.read_bytes())
    return found.hexdigest()


class SearchState:
    """Outcomes of seeds for one version of the program, in the file ``path``; without a path they
    are in memory only."""

    def __init__(self, path: Path | None, program: str) -> None:
        self.passed: set[int] = set()
        self.failed: dict[int, str] = {}
        self._path = path
        if path is None:
            return
        head = f"# {program}"
        text = path.read_text() if path.exists() else ""
        lines = text.split("\n")
        if lines[0] != head:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n")
            return
        for line in lines[1:]:
            self._read(line)
        if lines[-1]:
            self._write("")  # an interruption cut the line short

    def _read(self, line: str) -> None:
        number, _, rest = line.partition(" ")
        outcome, _, failure = rest.partition(" ")
        if outcome == _PASSED:
            self.passed.add(int(number))
        elif outcome == _FAILED and failure:
            self.failed[int(number)] = failure

    def note_passed(self, seed: int) -> None:
        """Record a seed that passed."""
        self.passed.add(seed)
        self._write(f"{seed} {_PASSED}")

    def note_failed(self, seed: int, failure: str) -> None:
        """Record a seed that failed, with a line that says how."""
        self.failed[seed] = failure
        self._write(f"{seed} {_FAILED} {failure}")

    def _write(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")


class Search:
    """A search over seeds with ``run``; ``seconds`` bounds its time."""

    def __init__(
        self, run: RunSeed, state: SearchState, *, seconds: float, stop: bool, trace: bool
    ) -> None:
        self.left = 0
        self._run = run
        self._state = state
        self._stop = stop
        self._trace = trace
        self._clock = SystemClock()
        self._deadline_ns = self._clock.monotonic_ns() + int(seconds * 1e9)
        self._took_ms: list[int] = []

    def over(self, seeds: range) -> int:
        """Run the seeds without an outcome; return the number that failed, now and before."""
        # Automatic garbage collection would take a third of the time.
        gc.freeze()
        gc.disable()
        try:
            for seed in seeds:
                self._once(seed, alone=len(seeds) == 1)
        finally:
            gc.enable()
        return sum(seed in self._state.failed for seed in seeds)

    def _once(self, seed: int, *, alone: bool) -> None:
        state, begin_ns = self._state, self._clock.monotonic_ns()
        if seed in state.passed or seed in state.failed:
            return
        if begin_ns >= self._deadline_ns or (self._stop and state.failed):
            self.left += 1
            return
        try:
            summary, *lines = self._run(seed)
        except Exception as error:
            state.note_failed(seed, f"{type(error).__name__}: {error}".partition("\n")[0])
            print(f"seed {seed} FAILED", *traceback.format_exception(error), sep="\n", flush=True)
            return
        state.note_passed(seed)
        self._took_ms.append((self._clock.monotonic_ns() - begin_ns) // 1_000_000)
        runs = len(self._took_ms)
        if alone:
            print(summary, *(lines if self._trace else ()), sep="\n", flush=True)
        elif runs % _REPORT_EVERY == 0:
            median_ms = sorted(self._took_ms)[runs // 2]
            print(f"{seed}: {len(state.failed)} failed, median {median_ms} ms", flush=True)
        if runs % _COLLECT_EVERY == 0:
            gc.collect()


def main(program: str, run: RunSeed, words: Sequence[str] | None) -> int:
    """Run the command ``program`` with the arguments ``words``.

    Return its exit code: 0 if all seeds passed, 1 if one failed, 3 if seeds are left.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}")
    parser.add_argument("seeds", nargs="+", help="a seed, or FIRST:STOP")
    parser.add_argument("--state", type=Path, help="a file with the outcomes, to continue from")
    parser.add_argument("--seconds", type=float, default=1e9, help="leave the rest after this time")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--trace", action="store_true", help="print the trace of a seed")
    chosen = parser.parse_args(words)
    state = SearchState(chosen.state, program_hash() if chosen.state else "")
    search = Search(run, state, seconds=chosen.seconds, stop=chosen.stop, trace=chosen.trace)
    total = failures = 0
    for text in chosen.seeds:
        first, _, stop = text.partition(":")
        seeds = range(int(first), int(stop or int(first) + 1))
        total, failures = total + len(seeds), failures + search.over(seeds)
    print(f"{total - search.left} of {total} seeds done, {failures} failed", flush=True)
    return 1 if failures else 3 if search.left else 0
