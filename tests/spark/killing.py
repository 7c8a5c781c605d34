"""`kill -9` of everything that a stream into a table needs; then every message is there once.

A campaign is a topic on a broker of its own, with real files, and one process that runs streams
into all sinks, on a standalone cluster or on a JVM of its own. In a round messages are sent, and
while micro-batches are under way, one is killed of: the driver, its JVM, a Python worker, an
executor, the broker. What was killed is started again. In the end the streams read to the topic's
end (`availableNow`). Each sink must hold every message once then, or, if it merges, what the last
message of each key left. All chance is drawn from the seed.

    python -m tests.spark.killing 25                so many rounds, in campaigns of five
        --sinks a,b      of tests/spark/sinks.py; all without it
        --messages N     send so many in each round, which are five batches; 200 without it
        --local          on a JVM of the process's own: no cluster, and no executor to kill
        --state FILE     note what is done there, and go on from there next time
        --seconds N      begin no campaign after so long; what is left is for the next call

The exit code is 0 when all is done and nothing was found, 1 when something was found (the folder
of the campaign is kept), 3 when rounds are left.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cometmq.client.blocking import Client
from cometmq.testing.cluster import ProcessCluster
from cometmq.testing.postgres import running_postgres
from tests.architecture.rules import ROOT
from tests.mariadb import running_mariadb
from tests.spark.killed_query import Query
from tests.spark.processes import Process, below, end, end_group
from tests.spark.sinks import SINKS, TOPIC_EACH, TOPIC_STREAM, Place, body_of, key_of, streams
from tests.spark.standalone import Standalone, standalone
from tests.spark.topics import make_topic

TOPIC = "Killed"
QUEUES = 4
DROPPED = f"{TOPIC_STREAM},{TOPIC_EACH}"
MESSAGES_A_ROUND = 200
BATCHES_A_ROUND = 5
WAIT_S = 300
END_S = 300
END_TRIES = 3
SERVERS = {"postgres": running_postgres, "mysql": running_mariadb}
VICTIMS = ("driver", "jvm", "python worker", "executor", "broker")


@dataclass(slots=True)
class Campaign:
    """Streams that are killed. ``kills`` counts by victim those that hit a batch under way."""

    folder: Path
    broker: ProcessCluster
    sinks: list[str]
    chance: Random
    cluster: Standalone | None = None
    postgres: str = ""
    mysql: str = ""
    messages_a_round: int = MESSAGES_A_ROUND
    sent: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def place(self) -> Place:
        """Where the sinks are."""
        return Place(str(self.folder), self.broker.namesrv, self.postgres, self.mysql)

    def make(self) -> None:
        """The topic, and what the sinks need."""
        with Client(self.broker.namesrv) as client:
            make_topic(client, TOPIC, QUEUES)
        for name in self.sinks:
            SINKS[name].make(self.place)

    def round(self, victim: str) -> None:
        """Send, kill in the middle of a batch, start again what was killed."""
        self.send(self.messages_a_round)
        self.ensure_running()
        commits = self.chance.randrange(0, 3)
        # Any of the streams may be the one whose batch is hit.
        name = self.chance.choice(streams(self.sinks))
        goal = self.logged(name, "commits") + commits
        self.wait_until(lambda: goal <= self.logged(name, "commits") < self.logged(name, "offsets"))
        moment = time.monotonic() + self.chance.random() * self.chance.choice((0.05, 0.5))
        while time.monotonic() < moment:
            time.sleep(0.005)
        hit = any(
            self.logged(each, "commits") < self.logged(each, "offsets")
            for each in streams(self.sinks)
        )
        self.kill(victim)
        self.kills[victim] += hit

    def send(self, count: int) -> None:
        """Add messages; the broker runs, so none is sent twice."""
        with Client(self.broker.namesrv) as client:
            for number in range(self.sent, self.sent + count):
                body, key = body_of(number).encode(), key_of(number)
                client.send(TOPIC, body, keys=[str(number)], order_key=key)
        self.sent += count

    def kill(self, victim: str) -> None:
        """Kill one, and start it again where nobody else does."""
        assert self.process is not None
        if victim == "broker":
            self.broker.kill()
            self.broker.start()
        elif victim == "driver":
            end(self.process.pid)
            self.process.wait(30)
        else:
            end(self.find(victim).pid)
            if victim == "jvm":
                # Without it the driver has nothing left to wait for.
                self.process.wait(WAIT_S)

    def find(self, victim: str) -> Process:
        """A process of a kind: what the driver and, on a cluster, its executors started."""
        assert self.process is not None
        roots = [self.process.pid]
        if self.cluster is not None:
            roots += [executor.pid for executor in self.cluster.executors()]
        kinds: dict[str, Callable[[], list[Process]]] = {
            "jvm": lambda: [each for each in below(roots[0]) if "SparkSubmit" in each.command],
            "executor": lambda: self.cluster.executors() if self.cluster is not None else [],
            "python worker": lambda: _workers(roots if self.cluster is None else roots[1:]),
        }
        self.wait_until(lambda: bool(kinds[victim]()))
        return self.chance.choice(kinds[victim]())

    def ensure_running(self) -> None:
        """Start the streams where they do not run."""
        if self.process is not None and self.process.poll() is None:
            return
        self.stop()
        self.restarts += 1
        self.process = self.start(available_now=False)

    def start(self, *, available_now: bool) -> subprocess.Popen[bytes]:
        """The streams, in a process group of their own."""
        master = "" if self.cluster is None else self.cluster.url
        limit = 0 if available_now else self.messages_a_round // BATCHES_A_ROUND
        query = Query(self.place, TOPIC, self.sinks, master, limit)
        command = [sys.executable, "-m", "tests.spark.killed_query", query.to_json()]
        with (self.folder / "query.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End the streams with all that belongs to them."""
        if self.process is not None:
            end_group(self.process.pid)
            self.process.wait(30)
            self.process = None

    def finish(self) -> None:
        """Read to the topic's end, and look at what is there."""
        for tries_left in reversed(range(END_TRIES)):
            self.stop()
            self.process = self.start(available_now=True)
            if self.process.wait(END_S) == 0:
                break
            # A busy machine starts Python too slowly for Spark, which gives up after ten seconds.
            assert tries_left, self.log_tail()
        for name in self.sinks:
            expected = SINKS[name].expected(self.sent)
            found = Counter(SINKS[name].bodies(self.place))
            lost, more = expected - found, found - expected
            assert not lost, f"{name} lacks {len(lost)} messages: {sorted(lost)[:10]}"
            assert not more, f"{name} has {sum(more.values())} repeats: {sorted(more)[:10]}"

    def logged(self, stream: str, kind: str) -> int:
        """How many batches a checkpoint has in its log of ``offsets`` or of ``commits``."""
        found = (self.folder / f"{stream}-checkpoint" / kind).glob("*")
        numbers = [int(path.name) for path in found if path.name.isdigit()]
        return max(numbers, default=-1) + 1

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait; streams that end meanwhile are started again."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.log_tail()
            self.ensure_running()
            time.sleep(0.02)

    def log_tail(self) -> str:
        """What the streams logged last."""
        return (self.folder / "query.log").read_text(errors="replace")[-6000:]


def _workers(roots: Sequence[int]) -> list[Process]:
    """Python processes that run tasks: children of pyspark's daemon, else the daemon."""
    daemons = [each for each in below(*roots) if "pyspark.daemon" in each.command]
    pids = {each.pid for each in daemons}
    return [each for each in daemons if each.parent in pids] or daemons


@contextmanager
def campaign(
    folder: Path,
    seed: int,
    sinks: Sequence[str],
    cluster: Standalone | None,
    *,
    postgres: str = "",
    mysql: str = "",
) -> Iterator[Campaign]:
    """A campaign with its broker; ends all that it started."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessCluster(folder / "broker", dropRepeatedIdsTopics=DROPPED) as broker:
        found = Campaign(folder, broker, list(sinks), Random(seed), cluster, postgres, mysql)
        try:
            found.make()
            yield found
        finally:
            found.stop()


def victims(seed: int, *, on_cluster: bool) -> list[str]:
    """Each victim once, in an order that the seed says."""
    found = [victim for victim in VICTIMS if on_cluster or victim != "executor"]
    Random(seed).shuffle(found)
    return found


def run_one(seed: int, sinks: Sequence[str], *, local: bool, messages: int) -> dict[str, int]:
    """A whole campaign; gives the kills by victim. What it left is kept when it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"cometmq-spark-kills-{seed}-"))
    try:
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(run_server())
                for name, run_server in SERVERS.items()
                if any(sink.startswith(name) for sink in sinks)
            }
            cluster = None if local else stack.enter_context(standalone(folder / "spark"))
            found = stack.enter_context(campaign(folder, seed, sinks, cluster, **servers))
            found.messages_a_round = messages
            for victim in victims(seed, on_cluster=not local):
                found.round(victim)
            found.finish()
    except BaseException:
        print(f"campaign {seed}: its folder is kept: {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
    return {**found.kills, "messages": found.sent, "starts": found.restarts + 1}


def run(asked: argparse.Namespace) -> tuple[list[dict[str, int]], int]:
    """Campaigns until there were so many rounds; gives what those ever noted did, and how many
    failed."""
    deadline = time.monotonic() + asked.seconds
    state: Path | None = asked.state
    lines = state.read_text().splitlines() if state is not None and state.exists() else []
    noted = {key: value for line in lines for key, value in json.loads(line).items()}
    sinks: list[str] = asked.sinks.split(",") if asked.sinks else sorted(SINKS)
    rounds = len(VICTIMS) - asked.local
    seeds = range(-(-asked.rounds // rounds))
    for seed in seeds:
        place = "local" if asked.local else "cluster"
        key = f"{seed} {','.join(sinks)} {place} {asked.messages}"
        if key not in noted and time.monotonic() < deadline:
            print(f"campaign {key}", flush=True)
            try:
                noted[key] = run_one(seed, sinks, local=asked.local, messages=asked.messages)
            except Exception as error:
                traceback.print_exc()
                noted[key] = repr(error)[:500]
            if state is not None:
                state.parent.mkdir(parents=True, exist_ok=True)
                with state.open("a") as file:
                    file.write(json.dumps({key: noted[key]}) + "\n")
    done = [value for value in noted.values() if isinstance(value, dict)]
    return done, len(noted) - len(done)


def main(words: Sequence[str]) -> int:
    """The command; gives its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.killing")
    parser.add_argument("rounds", type=int)
    parser.add_argument("--sinks", default="")
    parser.add_argument("--messages", type=int, default=MESSAGES_A_ROUND)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9)
    asked = parser.parse_args(words)
    outcomes, failures = run(asked)
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome)
    rounds = (len(VICTIMS) - asked.local) * len(outcomes)
    print(
        f"{rounds} of {asked.rounds} rounds; {failures} campaigns failed; in batches: {dict(total)}"
    )
    return 1 if failures else 3 if rounds < asked.rounds else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
