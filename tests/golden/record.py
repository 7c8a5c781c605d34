"""Records golden frames: what a real Java 4.9.7 client, mqadmin, broker and name server say.

    python -m tests.golden.record

rewrites `frames/`. Of frames alike (same peers, codes, codec, header fields, and whether there is
a body) the first is kept, and a request with each answer that is kept. The frames of `handmade.py`
are sent to the same servers and kept with their answers. Needs Java and Maven; takes a minute.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cometmq.protocol.codes import RequestCode, ResponseCode
from tests.compat import anchor
from tests.compat.driver import Driver
from tests.golden import handmade
from tests.golden.wiretap import MAX_BODY_BYTES, Carried, Proxy, Tap, parse_head

FRAMES = Path(__file__).parent / "frames"
MANIFEST = FRAMES / "manifest.json"
TOPIC = "golden"
GROUP = "golden-group"
#: A neutral place: broker settings, which are recorded too, name it.
WORK = Path("/var/tmp/rocketmq-golden")


#: What the manifest says of one frame.
Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its answer; one-way requests have none."""

    request: Carried
    response: Carried | None


def send_steps(driver: Driver, namesrv: str) -> None:
    """Every way of sending, the first of them to a topic that does not exist yet."""
    driver.send(namesrv, TOPIC, prefix="sync-", count=3, tags=["a", "b"])
    driver.send(namesrv, TOPIC, mode="async", prefix="async-", count=2)
    driver.send(namesrv, TOPIC, mode="oneway", prefix="oneway-", count=2)
    driver.send(namesrv, TOPIC, mode="batch", prefix="batch-", count=4, tags=["a"])
    driver.send(namesrv, TOPIC, prefix="delayed-", delay=1)
    driver.send(namesrv, TOPIC, prefix="big-", size=5000)
    driver.send(namesrv, TOPIC, prefix="user-", properties={"colour": "grün", "size": "7"})


def consume_steps(driver: Driver, namesrv: str) -> None:
    """Clustering with retry and a second member, orderly with locks, single pulls."""
    common = {"namesrv": namesrv, "group": GROUP, "topic": TOPIC, "filter": "a || b"}
    driver.ask("consume", id="first", failTimes=1, **common)
    driver.ask("received", id="first", count=8, timeoutMs=20_000)
    driver.ask("consume", id="second", **common)
    driver.ask("received", id="second", count=1, timeoutMs=3_000)
    orderly = common | {"group": "golden-orderly", "filter": "*"}
    driver.ask("consume", id="orderly", orderly=True, **orderly)
    driver.ask("received", id="orderly", count=10, timeoutMs=20_000, settleMs=3_000)
    for offset in (0, 1_000):
        queue = {"broker": "broker-a", "queue": 0, "offset": offset}
        driver.ask("pullAt", namesrv=namesrv, topic=TOPIC, **queue)
    driver.ask("pullAll", namesrv=namesrv, topic=TOPIC)


def tool_steps(driver: Driver, namesrv: str, broker: str) -> None:
    """The mqadmin commands that ask and change, while consumers are connected."""
    at_name_server, at_broker = ("-n", namesrv), ("-n", namesrv, "-b", broker)
    sent = driver.send(namesrv, TOPIC, prefix="tools-", tags=["a"], queue=0, broker="broker-a")
    offset_id = str(sent[0]["offsetMsgId"])
    seen_through_proxy = f"{offset_id[:8]}{int(broker.partition(':')[2]):08X}{offset_id[16:]}"
    for words in (
        ["clusterList"],
        ["topicList"],
        ["topicList", "-c"],
        ["topicRoute", "-t", TOPIC],
        ["topicRoute", "-t", "missing"],
        ["topicStatus", "-t", TOPIC],
        ["topicClusterList", "-t", TOPIC],
        ["queryMsgById", "-i", seen_through_proxy],
        ["queryMsgByKey", "-t", TOPIC, "-k", "tools-0"],
        ["queryMsgByKey", "-t", TOPIC, "-k", "missing"],
        ["queryMsgByUniqueKey", "-t", TOPIC, "-i", str(sent[0]["msgId"])],
        ["queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"],
        ["consumerProgress", "-g", GROUP],
        ["consumerProgress"],
        ["consumerConnection", "-g", GROUP],
        ["producerConnection", "-g", "java-producers", "-t", TOPIC],
        ["consumerStatus", "-g", GROUP],
        ["statsAll", "-t", TOPIC],
        ["getNamesrvConfig"],
        ["updateKvConfig", "-s", "golden", "-k", "one", "-v", "1"],
        ["deleteKvConfig", "-s", "golden", "-k", "one"],
        ["updateOrderConf", "-t", TOPIC, "-m", "put", "-v", "broker-a:4"],
        ["updateOrderConf", "-t", TOPIC, "-m", "get"],
        ["wipeWritePerm", "-b", "broker-a"],
        ["addWritePerm", "-b", "broker-a"],
        ["resetOffsetByTime", "-g", "golden-orderly", "-t", TOPIC, "-s", "0"],
        ["updateSubGroup", "-c", "DefaultCluster", "-g", "golden-new"],
        ["deleteSubGroup", "-c", "DefaultCluster", "-g", "golden-new"],
        ["updateTopic", "-c", "DefaultCluster", "-t", "golden-new", "-r", "2", "-w", "2"],
        ["deleteTopic", "-c", "DefaultCluster", "-t", "golden-new"],
    ):
        driver.mqadmin(*words, *at_name_server)
    for words in (
        ["brokerStatus"],
        ["getBrokerConfig"],
        ["updateBrokerConfig", "-k", "flushDiskType", "-v", "ASYNC_FLUSH"],
        ["brokerConsumeStats"],
    ):
        driver.mqadmin(*words, *at_broker)
    queue = {"broker": "broker-a", "queue": 0, "timestamp": 0}
    driver.ask("offsets", namesrv=namesrv, topic=TOPIC, **queue)


def record_pass(codec: str, folder: Path, jars: Path) -> list[Carried]:
    """One run of all steps with peers that write one codec; plain registration in JSON only."""
    tap = Tap()
    namesrv_proxy, broker_proxy = Proxy(tap, "namesrv"), Proxy(tap, "broker")
    namesrv = f"127.0.0.1:{namesrv_proxy.port}"
    properties = {"rocketmq.serialize.type": codec}
    settings = {"compressedRegister": str(codec != "JSON").lower()}
    cluster = anchor.JavaCluster(
        jars, folder, settings, namesrv_seen_by_broker=namesrv, properties=properties
    )
    namesrv_proxy.upstream_port = cluster.namesrv_server.port
    broker_proxy.upstream_port = cluster.broker_server.port
    namesrv_proxy.replace = (
        f":{broker_proxy.upstream_port}".encode(),
        f":{broker_proxy.port}".encode(),
    )
    with cluster:
        driver = Driver(jars, folder / "driver", properties)
        try:
            send_steps(driver, namesrv)
            consume_steps(driver, namesrv)
            tool_steps(driver, namesrv, f"127.0.0.1:{broker_proxy.port}")
        finally:
            driver.close()
    for proxy in (namesrv_proxy, broker_proxy):
        proxy.close()
    return tap.carried


def record_registration(folder: Path, jars: Path) -> tuple[list[Carried], list[Line]]:
    """A broker that compresses its registration and asks before it repeats it (code 322).

    The same servers are then sent the frames of `handmade.py`.
    """
    tap = Tap()
    proxy = Proxy(tap, "namesrv")
    settings = {"compressedRegister": "true", "forceRegister": "false"}
    settings["registerNameServerPeriod"] = "10000"
    seen = f"127.0.0.1:{proxy.port}"
    cluster = anchor.JavaCluster(jars, folder, settings, namesrv_seen_by_broker=seen)
    proxy.upstream_port = cluster.namesrv_server.port
    with cluster:
        anchor.wait_until(
            lambda: any(frame.head.code == RequestCode.QUERY_DATA_VERSION for frame in tap.carried),
            "the broker asks for its data version",
            40,
        )
        ports = {"namesrv": cluster.namesrv_server.port, "broker": cluster.broker_server.port}
        lines = [line for made in handmade.all_frames() for line in send_handmade(made, ports)]
    proxy.close()
    return tap.carried, lines


def send_handmade(made: handmade.Handmade, ports: Mapping[str, int]) -> list[Line]:
    """Sends one frame, writes it and its answer; gives their lines of the manifest."""
    head = parse_head(made.frame)
    name = f"{made.who}-{made.name.removeprefix(f'{made.who}-')}"
    kind = "request" if made.answered else "oneway"
    lines = [frame_line(f"{name}-{kind}.bin", made.who, made.server, made.frame)]
    lines[0]["what"] = f"written by hand as {made.who} writes it: {made.what}"
    with socket.create_connection(("127.0.0.1", ports[made.server]), 10) as connection:
        connection.sendall(made.frame)
        if made.answered:
            answer = read_answer(connection)
            line = frame_line(f"{name}-response.bin", f"java-{made.server}", made.who, answer)
            line |= {"answers": lines[0]["file"], "answers_code": head.code}
            lines.append(line | {"what": f"what the real {made.server} answers"})
    return lines


def read_answer(connection: socket.socket) -> bytes:
    """The next answer; requests of the server's own that come before it are left out."""
    with connection.makefile("rb") as stream:
        while length := stream.read(4):
            frame = length + stream.read(int.from_bytes(length, "big"))
            if parse_head(frame).is_response:
                return frame
    raise anchor.AnchorFailed("the server closed the connection")


def frame_line(name: str, sender: str, receiver: str, frame: bytes) -> Line:
    """Writes a frame; gives what the manifest says of every frame."""
    (FRAMES / name).write_bytes(frame)
    head = parse_head(frame)
    line: Line = {"file": name, "sender": sender, "to": receiver, "code": head.code}
    line |= {"codec": head.codec, "flag": head.flag, "opaque": head.opaque}
    return line | {"body_bytes": head.body_bytes}


def exchanges(carried: Iterable[Carried]) -> list[Exchange]:
    """Puts requests and answers together, by connection and opaque number of each direction."""
    waiting: dict[tuple[str, int, bool, int], Carried] = {}
    found: list[Exchange] = []
    for frame in carried:
        if frame.head.is_oneway and not frame.head.is_response:
            found.append(Exchange(frame, None))
        elif not frame.head.is_response:
            waiting[frame.server, frame.connection, frame.to_server, frame.head.opaque] = frame
        else:
            place = (frame.server, frame.connection, not frame.to_server, frame.head.opaque)
            if request := waiting.pop(place, None):
                found.append(Exchange(request, frame))
    return found


def kind(exchange: Exchange) -> tuple[object, ...]:
    """What makes two exchanges alike."""
    described: list[object] = []
    for frame in (exchange.request, exchange.response):
        if frame is not None:
            head = frame.head
            described += [frame.server, frame.to_server, head.code, head.flag, head.codec]
            described += [head.ext_names, head.body_bytes > 0]
    return tuple(described)


def first_of_each(found: Iterable[Exchange]) -> list[Exchange]:
    """One exchange of each kind, in order of codes; huge bodies left out."""
    kept: dict[tuple[object, ...], Exchange] = {}
    for exchange in found:
        frames = [exchange.request, *([exchange.response] if exchange.response else [])]
        if all(frame.head.body_bytes <= MAX_BODY_BYTES for frame in frames):
            kept.setdefault(kind(exchange), exchange)
    return sorted(kept.values(), key=lambda e: (e.request.head.code, e.request.head.codec))


def client_role(exchange: Exchange) -> str:
    """Who is at the other end of a server's connection."""
    brokers = {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
    }
    if exchange.request.server == "namesrv" and exchange.request.head.code in brokers:
        return "broker"
    return "client"


def write_frames(found: Iterable[Exchange]) -> list[Line]:
    """Writes the files; gives their lines of the manifest."""
    lines: list[Line] = []
    for number, exchange in enumerate(found, 1):
        request = exchange.request
        code = RequestCode(request.head.code) if request.head.code in list(RequestCode) else None
        title = code.name if code else f"CODE_{request.head.code}"
        stem = f"java-{number:03d}-{title.lower().replace('_', '-')}"
        sides = (f"java-{client_role(exchange)}", f"java-{request.server}")
        sender, receiver = sides if request.to_server else sides[::-1]
        request_file = f"{stem}-{'oneway' if request.head.is_oneway else 'request'}.bin"
        line = frame_line(request_file, sender, receiver, request.frame)
        lines.append(line | {"what": title})
        if exchange.response is not None:
            name = f"{stem}-response.bin"
            line = frame_line(name, receiver, sender, exchange.response.frame)
            line |= {"answers": request_file, "answers_code": request.head.code}
            what = f"{title} answered {response_name(exchange.response.head.code)}"
            lines.append(line | {"what": what})
    return lines


def response_name(code: int) -> str:
    """The name of an answer's code, its number when it has none."""
    return ResponseCode(code).name if code in list(ResponseCode) else str(code)


def main() -> None:
    """Records everything anew."""
    jars = anchor.fetch_jars()
    shutil.rmtree(WORK, ignore_errors=True)
    FRAMES.mkdir(exist_ok=True)
    for old in FRAMES.glob("*.bin"):
        old.unlink()
    try:
        carried = [record_pass(codec, WORK / codec, jars) for codec in ("JSON", "ROCKETMQ")]
        registration, handmade_lines = record_registration(WORK / "registration", jars)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    found = [exchange for frames in [*carried, registration] for exchange in exchanges(frames)]
    lines = write_frames(first_of_each(found)) + handmade_lines
    text = ",\n".join(json.dumps(line) for line in lines)
    MANIFEST.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print(f"{len(lines)} frames in {FRAMES}")


if __name__ == "__main__":
    main()
