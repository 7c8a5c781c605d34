"""The blocking connection: kept, replaced once when it died, and never waited on for ever."""

import os
from contextlib import suppress
from typing import Any

import pytest

from cometmq.core.errors import BrokerRefused, NotConnected, RequestTimedOut
from cometmq.protocol.acl import Credentials, signature
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import Head, Request, Response, decode_head
from cometmq.protocol.framer import Framer
from cometmq.protocol.headers import TopicQueue
from cometmq.spark.brokers import wire
from cometmq.spark.brokers.access import Access
from tests.spark.scripted import Answer, ScriptedPeer

CODE = int(RequestCode.GET_MAX_OFFSET)
ACCESS = Access((), 5_000)


def queue(at: int) -> TopicQueue:
    return TopicQueue(topic="T", queue_id=at)


def echo(request: Request[Any]) -> Answer:
    return 0, {"offset": str(request.header.queue_id)}, b""


def test_answers_come_in_the_order_of_their_requests() -> None:
    with ScriptedPeer(echo) as peer:
        answers = wire.call_many(peer.address, [(CODE, queue(at)) for at in range(200)], ACCESS)
    assert [answer.ext["offset"] for answer in answers] == [str(at) for at in range(200)]


def test_no_requests_need_no_connection() -> None:
    assert wire.call_many("127.0.0.1:1", [], ACCESS) == []


def test_a_connection_is_kept() -> None:
    with ScriptedPeer(echo) as peer:
        for at in range(5):
            wire.call(peer.address, CODE, queue(at), ACCESS)
        assert peer.connections == 1


def test_a_server_that_does_not_answer_is_logged_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_ms, is_silent = 1_000, True
    monkeypatch.setattr(wire, "_now_ms", lambda: now_ms)

    def script(request: Request[Any]) -> Answer | None:
        return None if is_silent else echo(request)

    def ask() -> None:
        with suppress(NotConnected):
            wire.call(peer.address, CODE, queue(0), ACCESS)

    with ScriptedPeer(script) as peer:
        for _ in range(5):
            ask()
        now_ms += wire.SILENT_WARNING_MS
        for _ in range(5):
            ask()
        is_silent = False
        ask()
        ask()
    texts = [line.partition(" error=")[0] for line in caplog.messages]
    assert texts == [
        f"server_silent address={peer.address} away_ms=0",
        f"server_silent address={peer.address} away_ms=30000",
        f"server_responds address={peer.address} away_ms=30000",
    ]
    assert "closed by the other side" in caplog.text


def test_what_is_known_of_silent_servers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "SILENT_MAX", 3)
    monkeypatch.setattr(wire, "_silent", {})
    for port in range(1, 9):
        with pytest.raises(NotConnected):
            wire.call(f"127.0.0.1:{port}", CODE, queue(0), ACCESS)
        assert len(wire._silent) <= 3


def test_another_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedPeer(echo) as peer:
        wire.call(peer.address, CODE, queue(0), ACCESS)
        pid = os.getpid()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: pid + 1)
            wire.call(peer.address, CODE, queue(0), ACCESS)
            wire.close_all()
        assert peer.connections == 2


def test_requests_ahead_of_their_answers() -> None:
    with ScriptedPeer(echo) as peer:
        with wire.held(peer.address, ACCESS) as held:
            held.ask([(CODE, queue(at)) for at in range(3)], 5_000)
            held.ask([(CODE, queue(3))], 5_000)
            assert held.in_flight == 4
            offsets = [held.answer(5_000).ext["offset"] for _ in range(4)]
            assert offsets == ["0", "1", "2", "3"]
        wire.call(peer.address, CODE, queue(0), ACCESS)
        assert peer.connections == 1


def test_a_connection_with_answers_to_come_is_not_kept() -> None:
    with ScriptedPeer(echo) as peer:
        with wire.held(peer.address, ACCESS) as held:
            held.ask([(CODE, queue(5))], 5_000)
        assert wire.call(peer.address, CODE, queue(7), ACCESS).ext == {"offset": "7"}
        assert peer.connections == 2


def test_a_connection_that_another_took_the_place_of_is_not_kept() -> None:
    with ScriptedPeer(echo) as peer:
        with wire.held(peer.address, ACCESS) as held:
            wire.call(peer.address, CODE, queue(0), ACCESS)
        assert held.broken
        wire.call(peer.address, CODE, queue(0), ACCESS)
        assert peer.connections == 2


def test_a_connection_that_is_dead_when_it_is_held() -> None:
    with ScriptedPeer(echo) as peer:
        wire.call(peer.address, CODE, queue(0), ACCESS)
        peer.drop_connections()
        with wire.held(peer.address, ACCESS) as held, pytest.raises(NotConnected):
            held.exchange([(CODE, queue(1))], 5_000)
        assert wire.call(peer.address, CODE, queue(7), ACCESS).ext == {"offset": "7"}


def test_a_dead_connection_is_replaced() -> None:
    with ScriptedPeer(echo) as peer:
        wire.call(peer.address, CODE, queue(0), ACCESS)
        peer.drop_connections()
        assert wire.call(peer.address, CODE, queue(7), ACCESS).ext == {"offset": "7"}
        assert peer.connections == 2


def test_a_peer_that_always_hangs_up_is_not_connected() -> None:
    with ScriptedPeer(lambda _: None) as peer, pytest.raises(NotConnected, match="closed"):
        wire.call(peer.address, CODE, queue(0), ACCESS)


def test_nobody_there() -> None:
    with ScriptedPeer(echo) as peer:
        address = peer.address
    with pytest.raises(NotConnected, match=address):
        wire.call(address, CODE, queue(0), ACCESS)


def test_silence_ends_with_the_deadline() -> None:
    import threading

    done = threading.Event()

    def silent(_: Request[Any]) -> Answer:
        done.wait(10)
        return 0, {}, b""

    with ScriptedPeer(silent) as peer:
        with pytest.raises(RequestTimedOut) as caught:
            wire.call(peer.address, CODE, queue(0), Access((), 50))
        done.set()
    assert caught.value.request_code == CODE


def test_bytes_that_are_no_frame_end_the_connection() -> None:
    import socket
    import threading

    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        opened, _ = listener.accept()
        with opened:
            opened.recv(1000)
            opened.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(NotConnected):
        wire.call(f"127.0.0.1:{listener.getsockname()[1]}", CODE, queue(0), ACCESS)
    thread.join()
    listener.close()


def test_a_refusal_carries_code_and_remark() -> None:
    answer = Response(17, 0, "no topic", {}, b"")
    with pytest.raises(BrokerRefused, match="no topic"):
        wire.checked("a:1", CODE, answer)
    assert wire.checked("a:1", CODE, Response(0, 0, None, {}, b"x")).body == b"x"


def test_requests_are_signed() -> None:
    import socket
    import threading

    heads: list[Head] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        opened, _ = listener.accept()
        framer = Framer()
        with opened:
            framer.receive_data(opened.recv(65_536))
        heads.extend(decode_head(codec, header) for codec, header, _ in framer.take(9))

    thread = threading.Thread(target=serve)
    thread.start()
    reached = Access((), 5_000, account=Credentials("who", "hush hush"))
    with listener, pytest.raises(NotConnected):
        wire.Wire(f"127.0.0.1:{listener.getsockname()[1]}", reached).exchange(
            [(CODE, queue(3)), (CODE, None)], 5_000
        )
    thread.join()
    assert [head.ext.keys() for head in heads] == [
        {"topic", "queueId", "AccessKey", "Signature"},
        {"AccessKey", "Signature"},
    ]
    for head in heads:
        assert head.ext["AccessKey"] == "who"
        assert head.ext["Signature"] == signature("hush hush", head.ext)


def test_a_denial_names_the_options() -> None:
    for answer in (Response(16, 0, "no", {}, b""), Response(1, 0, "x.AclException: y", {}, b"")):
        with pytest.raises(BrokerRefused, match="set options accessKey and secretKey"):
            wire.checked("a:1", CODE, answer)
