"""Answers of sends: the ids that a batch is answered with."""

from cometmq.broker.sendanswers import message_ids
from cometmq.message.ids import decode_offset_id, encode_offset_id, pack_host


def test_ids_of_a_batch_lead_to_its_messages() -> None:
    host = pack_host("127.0.0.1", 10_911)
    places = [0, 461, (1 << 40) + 5]
    ids = message_ids(host.hex().upper(), places).split(",")
    assert ids == [encode_offset_id(host, place) for place in places]
    assert [decode_offset_id(each).physical_offset for each in ids] == places
