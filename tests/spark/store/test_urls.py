"""The text of URLs: what is in their folders, and what is shown of them."""

import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.store.options import broker_of, parse
from cometmq.spark.store.urls import StoreUnreadable, joined, listed, shown

URL = "s3://AKID:hu%2Fsh@bucket/broker-a/store?endpoint_override=127.0.0.1:9000&scheme=http"


def test_names_go_before_the_parameters_and_are_quoted() -> None:
    found = joined(URL, "consumequeue", "%RETRY%a b", "0")
    login, _, rest = found.partition("@")
    assert login == "s3://AKID:hu%2Fsh"
    assert rest == (
        "bucket/broker-a/store/consumequeue/%25RETRY%25a%20b/0"
        "?endpoint_override=127.0.0.1:9000&scheme=http"
    )
    assert joined("/data/store", "a b") == "/data/store/a b"


def test_neither_credentials_nor_parameters_are_shown() -> None:
    assert shown(joined(URL, "%RETRY%g")) == "s3://bucket/broker-a/store/%RETRY%g"
    assert shown("/data/store") == "/data/store"
    assert "hu" not in repr(parse({"store": URL}).roots)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (URL, "broker-a"),
        ("s3://broker-a/store/", "broker-a"),
        ("hdfs://names:8020/snapshots/broker-a", "broker-a"),
        ("/data/broker-a/store", "broker-a"),
    ],
)
def test_the_broker_is_the_last_folder_not_called_store(path: str, name: str) -> None:
    assert broker_of(path) == name


def test_a_file_url_is_a_folder_of_this_machine() -> None:
    assert parse({"store": "file:///data/a%20b/store"}).roots[0].path == "/data/a b/store"
    with pytest.raises(BadOption, match="three slashes, not the host 'data'"):
        parse({"store": "file://data/store"})


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3a://bucket/store", "'s3a', not s3, hdfs, file; write s3://"),
        ("ftp://host/store", "'ftp', not s3"),
        ("s3://AKID:hu/sh@bucket/store", "percent-encode"),
        ("s3://AKID:hu?sh@bucket/store", "percent-encode"),
        ("s3://AKID:hu,sh@bucket/store", "percent-encode"),
        ("s3://bucket/fold#1/store", "percent-encode"),
        ("file://AKID:hush@h/store", "not the host 'h'"),
    ],
)
def test_a_bad_url_is_refused_without_its_credentials(url: str, problem: str) -> None:
    with pytest.raises(BadOption, match=problem) as caught:
        parse({"store": url})
    assert "hu" not in str(caught.value)


def test_a_parameter_that_arrow_does_not_know_is_named() -> None:
    with pytest.raises(StoreUnreadable, match=r"s3://bucket/store cannot be read: .*'endpoint'"):
        listed("s3://AKID:hush@bucket/store?endpoint=127.0.0.1")
