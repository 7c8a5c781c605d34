"""The Java test programs, as one running JVM that is told steps and answers with facts."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from tests.compat import anchor

SOURCES: Final = anchor.HERE / "java"
STEP_TIMEOUT_S: Final = 90.0

#: What a step prints: JSON, which every test reads by the names that the Java side gave it.
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class StepFailed(Exception):
    """The Java side threw, or did not answer."""


class Driver:
    """`Driver.java` in a JVM of its own; close it after use. `version` is RocketMQ's."""

    def __init__(self, jars: Path, home: Path, properties: Mapping[str, str] | None = None) -> None:
        self.version = anchor.version_of(jars)
        anchor.prepare_home(home)
        classes = anchor.compile_java(jars, sorted(SOURCES.glob("*.java")))
        settings = {"rocketmq.client.rebalance.waitInterval": "1000", **(properties or {})}
        start = anchor.java_command([classes, f"{jars}/*"], home, properties=settings)
        self._log_path = home / "driver.log"
        self._tools_path = home / "conf" / "tools.yml"
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*start, "Driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=home,
            )
        self._unread = b""

    def ask(self, step: str, **arguments: object) -> Json:
        """Runs one step and gives its facts. Raises StepFailed."""
        assert self._process.stdin is not None
        line = json.dumps({"step": step, **arguments})
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise StepFailed(f"the JVM has ended before {line}") from None
        answer: dict[str, Json] = json.loads(self._read_line(step))
        if "error" in answer:
            raise StepFailed(f"{line}: {answer['error']}")
        return answer.get("facts")

    def rows(self, step: str, **arguments: object) -> list[dict[str, Json]]:
        """As `ask`, for steps whose facts are a list of objects."""
        facts = self.ask(step, **arguments)
        assert isinstance(facts, list)
        return [row for row in facts if isinstance(row, dict)]

    def mqadmin(self, *arguments: str, **account: str) -> str:
        """What an mqadmin command prints; `account` are the accessKey and secretKey that it finds
        in its file."""
        self._tools_path.unlink(missing_ok=True)
        if account:
            self._tools_path.write_text(json.dumps(account), encoding="utf-8")
        printed = self.ask("mqadmin", arguments=arguments)
        assert isinstance(printed, str)
        return printed

    def send(self, namesrv: str, topic: str, **arguments: object) -> list[dict[str, Json]]:
        """Sends messages whose bodies and keys are `prefix` and a number; see Producers.java."""
        defaults: dict[str, object] = {"group": "java-producers", "mode": "sync", "count": 1}
        defaults |= {"prefix": f"{topic}-"}
        return self.rows("send", namesrv=namesrv, topic=topic, **(defaults | arguments))

    def kill(self) -> None:
        """Ends the JVM at once: its clients would look for brokers that have gone."""
        self._process.kill()
        self.close()

    def close(self) -> None:
        """Lets the programs shut down, and ends the JVM when they do not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(anchor.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read_line(self, step: str) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(STEP_TIMEOUT_S):
                    raise StepFailed(f"no answer to {step} within {STEP_TIMEOUT_S} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    log = self._log_path.read_text(errors="replace")[-2000:]
                    raise StepFailed(f"the JVM ended at {step}: {log}")
                self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def tables(text: str) -> list[list[str]]:
    """The words of each line that mqadmin printed, headings (lines with `#`) left out."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [line.split() for line in lines]


def column(rows: Sequence[Mapping[str, Json]], name: str) -> list[Json]:
    """One fact of every row."""
    return [row[name] for row in rows]
