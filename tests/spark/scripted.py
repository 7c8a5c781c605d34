"""A peer that answers as a test says: for what a healthy broker does not do on demand."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cometmq.core.errors import RemoteProtocolError
from cometmq.protocol.bodies import BrokerData, ClusterBroker, ClusterInfo, QueueData, TopicRoute
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.connection import Connection
from cometmq.protocol.fastjson import encode_json
from cometmq.protocol.frame import Request, encode_response
from tests.spark.records import plain_record

Answer = tuple[int, dict[str, str], bytes]
"""Code, fields and body; a field ``remark`` is sent as the answer's remark too."""

Script = Callable[[Request[Any]], Answer | None]
"""None closes the connection instead of an answer."""


class ScriptedPeer:
    """Listens on a free port; every request goes through the script, in the order of arrival."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "ScriptedPeer":
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(10)

    def drop_connections(self) -> None:
        """Close what is open, as a broker that goes away."""
        for opened in self._sockets:
            try:
                opened.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def _accept(self) -> None:
        while True:
            try:
                opened, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._sockets.append(opened)
            thread = threading.Thread(target=self._serve, args=(opened,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, opened: socket.socket) -> None:
        connection: Connection[None] = Connection()
        with opened:
            while True:
                try:
                    data = opened.recv(65_536)
                except OSError:
                    return
                if not data:
                    return
                connection.receive_data(data)
                while connection.has_more:
                    try:
                        events = connection.next_events(10)
                    except RemoteProtocolError:
                        return
                    for event in events:
                        assert isinstance(event, Request)
                        answer = self._script(event)
                        if answer is None:
                            return
                        code, ext, body = answer
                        head = encode_response(
                            event, code, ext=ext, remark=ext.get("remark"), body_bytes=len(body)
                        )
                        try:
                            opened.sendall(head + body)
                        except OSError:
                            return


class ScriptedCluster:
    """A name server, and brokers ``broker-a`` by their ids, each with its own script for pulls."""

    def __init__(self, topic: str, *scripts: Script) -> None:
        self._topic = topic
        self.routes_asked: list[str] = []
        self.unknown: set[str] = set()
        self.names_answer = True
        self.broker_name = "broker-a"
        self.order_topic_conf: str | None = None
        self.registered: dict[str, dict[str, str]] = {}
        self.brokers = [ScriptedPeer(script) for script in scripts]
        self.addresses = {str(at): peer.address for at, peer in enumerate(self.brokers)}
        self._names = ScriptedPeer(self._route)
        self.namesrv = self._names.address

    def __enter__(self) -> "ScriptedCluster":
        for peer in (self._names, *self.brokers):
            peer.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for peer in (self._names, *self.brokers):
            peer.__exit__(None, None, None)

    def _route(self, request: Request[Any]) -> Answer | None:
        if not self.names_answer:
            return None
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return 0, {}, encode_json(self._cluster())
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        self.routes_asked.append(request.header.topic)
        if request.header.topic in self.unknown:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        route = TopicRoute(
            [BrokerData(self.broker_name, self.addresses, "c")],
            [QueueData(self.broker_name, 1, 1, 6)],
            order_topic_conf=self.order_topic_conf,
        )
        return 0, {}, encode_json(route)

    def _cluster(self) -> ClusterInfo:
        known = {self.broker_name: self.addresses, **self.registered}
        return ClusterInfo({name: ClusterBroker(name, at, "c") for name, at in known.items()})


def pull_answer(code: int, onward: int, body: bytes = b"") -> Answer:
    """A pull's answer with the offset to go on with."""
    ext = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "99"}
    return code, {**ext, "nextBeginOffset": str(onward)}, body


def holder(first: int, end: int, each: int = 3) -> Script:
    """A broker that has the offsets ``first <= offset < end`` and gives some at a time."""

    def script(request: Request[Any]) -> Answer:
        assert request.code == RequestCode.PULL_MESSAGE
        at = request.header.queue_offset
        if at < first:
            return pull_answer(ResponseCode.PULL_OFFSET_MOVED, first)
        if at > end:
            return pull_answer(ResponseCode.PULL_OFFSET_MOVED, end)
        if at == end:
            return pull_answer(ResponseCode.PULL_NOT_FOUND, at)
        stop = min(end, at + min(each, request.header.max_msg_nums))
        return pull_answer(0, stop, b"".join(plain_record(offset) for offset in range(at, stop)))

    return script
