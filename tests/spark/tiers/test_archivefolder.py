"""What deltalake is told of a URL."""

import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.tiers import archivefolder
from cometmq.spark.tiers.archivefolder import data_files, delta_options


def test_parameters_and_credentials_of_a_delta_table() -> None:
    url = "s3://AKID:hu%2Fsh@b/t?endpoint_override=127.0.0.1:9000&scheme=http&region=eu-central-1"
    assert delta_options(url) == {
        "AWS_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "hu/sh",
    }
    assert delta_options("s3://b/t") == {}


def test_a_delta_table_on_hdfs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archivefolder, "names_now", lambda _: ["_delta_log"])
    with pytest.raises(BadOption, match="hdfs://names:8020/t is a Delta table"):
        data_files("hdfs://names:8020/t")
