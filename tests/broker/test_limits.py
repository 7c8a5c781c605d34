"""How large a message may be."""

import pytest

from cometmq.broker.limits import check_body, check_properties
from cometmq.core.errors import MessageIllegal
from cometmq.message import properties as props


def test_properties_have_a_limit() -> None:
    check_properties(bytes(props.MAX_SIZE_BYTES))
    with pytest.raises(MessageIllegal, match="the limit is 32767"):
        check_properties(bytes(props.MAX_SIZE_BYTES + 1))


def test_bodies_have_a_limit() -> None:
    check_body(b"1234", 4)
    with pytest.raises(MessageIllegal, match="the limit is 3"):
        check_body(b"1234", 3)
