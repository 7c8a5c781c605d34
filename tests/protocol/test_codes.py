"""Numbers and their names."""

from cometmq.protocol.codes import (
    OUR_VERSION,
    Language,
    RequestCode,
    ResponseCode,
    version_name,
)


def test_versions_have_names() -> None:
    assert version_name(OUR_VERSION) == "V4_9_7"
    assert version_name(12345) == "12345"


def test_numbers_of_the_protocol() -> None:
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE) == (310, 320)
    assert (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.PULL_NOT_FOUND) == (17, 19)
    assert [Language.JAVA, Language.CPP, Language.PYTHON, Language.GO] == [0, 1, 3, 9]
