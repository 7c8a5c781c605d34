"""The files of an archive, local and behind URLs, and what deltalake is told of a URL."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cometmq.spark.options import BadOption
from cometmq.spark.store.urls import StoreUnreadable
from cometmq.spark.tiers import archivefolder
from cometmq.spark.tiers.archivefolder import (
    ArchiveFileGone,
    data_files,
    delta_options,
    opened,
)


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


@pytest.fixture(params=["local", "url"])
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A file of an archive, and how it is named."""
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"n": range(100), "m": range(100)}), path, row_group_size=60)
    return path, str(path) if request.param == "local" else path.as_uri()


def test_an_archived_file_is_read_by_columns_and_row_groups(archived: tuple[Path, str]) -> None:
    _, name = archived
    with opened(name) as file:
        assert file.read(["n"]).to_pydict() == {"n": [*range(100)]}
        assert file.read(["m"], [1]).to_pydict() == {"m": [*range(60, 100)]}
        found = [batch.to_pydict()["n"] for batch in file.batches(50, 0, ["n"])]
        assert found == [[*range(50)], [*range(50, 60)]]


def test_an_error_of_what_is_done_with_the_rows_stays_what_it_is(
    archived: tuple[Path, str],
) -> None:
    _, name = archived
    for error in (ValueError("no such unit"), OSError(28, "disk full"), FileNotFoundError("mine")):
        with pytest.raises(type(error)) as seen, opened(name):
            raise error
        assert seen.value is error


def test_a_file_that_is_gone_or_cannot_be_read_is_named(archived: tuple[Path, str]) -> None:
    path, name = archived
    kind = StoreUnreadable if "://" in name else OSError
    with opened(name) as file:
        with path.open("r+b") as raw:
            raw.write(bytes(200))
        with pytest.raises(kind):
            file.read(["n"])
    path.write_bytes(b"no Parquet at all")
    with pytest.raises(StoreUnreadable if "://" in name else pa.ArrowInvalid), opened(name):
        pass
    path.unlink()
    with pytest.raises(ArchiveFileGone, match=r"1\.parquet is not there"), opened(name):
        pass
