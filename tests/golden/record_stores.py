"""Records golden stores: directories that a real Java 4.9.7 broker wrote.

    python -m tests.golden.record_stores

writes `stores/clean.tar.gz` (the broker was asked to stop) and `stores/killed.tar.gz` (it was
killed while it ran), each with its messages, as the broker served them, in `stores/manifest.json`.
Files are small, so that there are several of each kind.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import tarfile
from pathlib import Path

from tests.compat import anchor
from tests.compat.driver import Driver, Json

STORES = Path(__file__).parent / "stores"
WORK = Path("/var/tmp/rocketmq-golden")
TOPIC = "golden"
OTHER = "golden-other"
GROUP = "golden-group"
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(40 * 20),
    "maxHashSlotNum": "100",
    "maxIndexNum": "300",
}
Row = dict[str, Json]


def write_messages(driver: Driver, namesrv: str, broker: str) -> None:
    """Plain, tagged, keyed, batched, delayed, compressed and retried messages."""
    driver.send(namesrv, TOPIC, prefix="plain-", count=100)
    driver.send(namesrv, TOPIC, prefix="tagged-", count=60, tags=["a", "b", "c"], size=300)
    for batch in range(10):
        driver.send(namesrv, TOPIC, mode="batch", prefix=f"batch-{batch}-", count=16, tags=["d"])
    driver.send(namesrv, TOPIC, prefix="compressed-", count=5, size=6000)
    driver.send(namesrv, TOPIC, prefix="user-", count=5, properties={"colour": "grün"})
    driver.send(namesrv, TOPIC, prefix="delayed-", count=3, delay=1)
    driver.send(namesrv, TOPIC, prefix="parked-", count=3, delay=18)
    driver.send(namesrv, OTHER, prefix="other-", count=40, tags=["a"], size=500)
    consumer = {"namesrv": namesrv, "group": GROUP, "topic": OTHER, "filter": "*"}
    driver.ask("consume", id="retrying", failTimes=1, **consumer)
    driver.ask("received", id="retrying", count=80, timeoutMs=30_000, settleMs=2_000)
    driver.ask("stop", id="retrying")


def record(jars: Path, name: str, sent: signal.Signals) -> Row:
    """Runs a broker, fills its store, ends it with the signal, packs the store."""
    home = WORK / name
    cluster = anchor.JavaCluster(jars, home, SETTINGS)
    cluster.start()
    try:
        driver = Driver(jars, home / "driver")
        try:
            write_messages(driver, cluster.namesrv, cluster.broker)
            topics = [TOPIC, OTHER, f"%RETRY%{GROUP}"]
            seen = {t: driver.ask("pullAll", namesrv=cluster.namesrv, topic=t) for t in topics}
        finally:
            driver.close()
        cluster.broker_server.stop(sent)
    finally:
        cluster.kill()
    pack(cluster.store, STORES / f"{name}.tar.gz")
    paths = sorted(path for path in cluster.store.rglob("*") if path.is_file())
    files: list[Json] = [str(path.relative_to(cluster.store)) for path in paths]
    row: Row = {"store": f"{name}.tar.gz", "ended_by": sent.name, "files": files}
    row["settings"] = {key: int(value) for key, value in SETTINGS.items()}
    row["parked_delay_level_18"] = 3
    row["topics"] = {topic: described(facts) for topic, facts in seen.items()}
    return row


def described(facts: Json) -> Json:
    """What a test compares: each queue's limits, and of each message its place and content."""
    assert isinstance(facts, dict)
    assert isinstance(facts["messages"], list)
    kept = ["queueId", "queueOffset", "commitLogOffset", "storeSize", "keys", "tags", "msgId"]
    kept += ["reconsumeTimes", "storeTimestamp", "bodySize", "body"]
    messages: list[Json] = [
        {key: message[key] for key in kept if message.get(key) is not None}
        for message in facts["messages"]
        if isinstance(message, dict)
    ]
    return {"queues": facts["queues"], "messages": messages}


def pack(store: Path, target: Path) -> None:
    """Packs the files of a store under `store/`, the same bytes for the same files."""
    with tarfile.open(target, "w:gz", compresslevel=9) as archive:
        for path in sorted(store.rglob("*")):
            info = archive.gettarinfo(path, f"store/{path.relative_to(store)}")
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            content = io.BytesIO(path.read_bytes()) if path.is_file() else None
            archive.addfile(info, content)


def main() -> None:
    """Records both stores anew."""
    jars = anchor.fetch_jars()
    STORES.mkdir(exist_ok=True)
    shutil.rmtree(WORK, ignore_errors=True)
    try:
        rows = [record(jars, "clean", signal.SIGTERM), record(jars, "killed", signal.SIGKILL)]
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("},{", "},\n{")
    (STORES / "manifest.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
