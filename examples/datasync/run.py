"""The run, in order: load, change, kill, catch up, compare."""

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice

from deltalake import DeltaTable

import cometmq
from examples.datasync.base import TOPIC, BaseData
from examples.datasync.copies import Places, compared
from examples.datasync.running import Running, relay
from examples.demo.compare import Comparison
from examples.demo.script import Edit, Script

LOAD_STEPS = 200
PATIENCE_S = 120


@dataclass(slots=True)
class Outcome:
    """The events of a run as text, the numbers of changes and messages, and the comparisons."""

    events: list[str] = field(default_factory=list)
    changes: int = 0
    messages: int = 0
    copies: list[Comparison] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Record an event and print it."""
        self.events.append(text)
        print(text, flush=True)


def run(
    places: Places,
    nameservers: str,
    script: Script,
    changes: int,
    catch_up: Callable[[], None],
    batches: int = 1,
) -> Outcome:
    """Change the base while its relay and, after some ``batches``, the pipeline are killed.

    ``catch_up`` restarts the pipeline. Raises TimeoutError if an expected state is not reached.
    """
    outcome = Outcome()
    places.make_databases()
    base = BaseData(places.database("base"))
    base.create()
    with ExitStack() as stack, cometmq.BlockingClient(nameservers) as client:
        stack.callback(base.close)
        client.wait(cometmq.Admin(client.inner.session).create_topic(TOPIC, queues=4))
        first_relay = stack.enter_context(_relay(places, nameservers))
        pipeline = stack.enter_context(_pipeline(places, nameservers))

        for edits in _joined(script.initial()):
            outcome.changes += base.commit(edits, _now_ms())
        outcome.say(f"{outcome.changes:,} rows are loaded")

        steps = script.steps(changes)
        for step in islice(steps, changes // 4):
            outcome.changes += base.commit(step, _now_ms())
        first_relay.kill()
        outcome.say(f"the relay is killed after {outcome.changes:,} changes")
        for step in islice(steps, changes // 4):
            outcome.changes += base.commit(step, _now_ms())
        outcome.say(f"{base.outbox.status().waiting:,} messages wait for another relay")
        stack.enter_context(_relay(places, nameservers))

        kill_between_copies(pipeline, places, batches)
        outcome.say("the Spark query is killed inside a micro-batch: some copies have it, some not")
        for step in steps:
            outcome.changes += base.commit(step, _now_ms())
        _until(lambda: base.outbox.status().waiting == 0, "the outbox to empty")
        outcome.messages = _messages(client)
        outcome.say(f"{outcome.changes:,} changes are made, {outcome.messages:,} messages sent")
        catch_up()
    outcome.copies = compared(places, DeltaTable(places.history).to_pyarrow_table().to_pylist())
    for copy in outcome.copies:
        outcome.say(f"{copy.name}: {'equal' if copy.equal else copy.differences} {dict(copy.rows)}")
    return outcome


def kill_between_copies(pipeline: Running, places: Places, batches: int) -> None:
    """Kill the pipeline while a batch is in the history and not finished yet, after ``batches``
    others."""
    done = places.checkpoint / "commits"

    def inside() -> bool:
        if not pipeline.alive:
            raise RuntimeError(f"the pipeline ended: {pipeline.tail()}")
        committed = sum(path.name.isdigit() for path in done.glob("*"))
        # The first version of the table is its creation.
        history = len(list((places.history / "_delta_log").glob("*.json"))) - 1
        return batches <= committed < history

    _until(inside, "a batch that is half done")
    pipeline.kill()


def _relay(places: Places, nameservers: str) -> Running:
    return relay(places.url("base"), nameservers, places.folder / "relay.log")


def _pipeline(places: Places, nameservers: str) -> Running:
    words = ("examples.datasync.pipeline", nameservers, places.server, str(places.folder))
    return Running(*words, log=places.folder / "pipeline.log")


def _joined(steps: Iterable[list[Edit]]) -> Iterable[list[Edit]]:
    """Combine many small steps into few transactions."""
    steps = iter(steps)
    while some := list(islice(steps, LOAD_STEPS)):
        yield [edit for step in some for edit in step]


def _messages(client: cometmq.BlockingClient) -> int:
    puller = client.inner.puller
    queues = client.wait(client.inner.queues(TOPIC))
    return sum(client.wait(puller.max_offset(queue)) for queue in queues)


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {PATIENCE_S} s for {what}")
        time.sleep(0.005)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
