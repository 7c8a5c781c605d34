"""Settings of the store."""

from dataclasses import replace

import pytest

from cometmq.core.errors import SettingsError
from cometmq.core.settings import build, to_properties
from cometmq.store.config import FlushDiskType, StoreConfig, delay_levels_ms


def test_rocketmq_s_keys_are_known() -> None:
    config, used = build(
        StoreConfig,
        {
            "mappedFileSizeCommitLog": "65536",
            "flushDiskType": "SYNC_FLUSH",
            "storePathRootDir": "/data",
            "fileReservedTime": "48",
            "somethingElse": "x",
        },
    )
    assert config.mapped_file_size_commit_log == 65_536
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.file_reserved_time == 48
    assert config.commit_log_directories == ("/data/commitlog",)
    assert used == {
        "mappedFileSizeCommitLog", "flushDiskType", "storePathRootDir", "fileReservedTime",
    }  # fmt: skip


def test_every_field_goes_both_ways() -> None:
    config = StoreConfig(store_path_commit_log="/fast/log")
    assert build(StoreConfig, to_properties(config))[0] == config
    assert config.writable_log_directories == ("/fast/log",)


def test_several_directories_of_the_log() -> None:
    config = StoreConfig(store_path_commit_log="/b/, /a,,/b")
    assert config.commit_log_directories == ("/b", "/a")
    assert config.writable_log_directories == ("/a", "/b")
    assert config.read_only_log_directories == ()
    config = replace(config, read_only_commit_log_store_paths="/old, /b")
    assert config.commit_log_directories == ("/b", "/a", "/old")
    assert config.writable_log_directories == ("/a",)
    assert config.read_only_log_directories == ("/old", "/b")
    # As in RocketMQ, none is read-only without a comma in the other setting.
    config = replace(config, store_path_commit_log="/b")
    assert config.commit_log_directories == config.writable_log_directories == ("/b",)
    one = StoreConfig(store_path_root_dir="/base")
    assert one.commit_log_directories == ("/base/commitlog",)


@pytest.mark.parametrize(("paths", "read_only"), [("/a,/b", "/b/,/a"), (",", ""), (" , ", "/a")])
def test_new_files_need_a_directory(paths: str, read_only: str) -> None:
    with pytest.raises(SettingsError, match="new files of the log need a directory"):
        StoreConfig(store_path_commit_log=paths, read_only_commit_log_store_paths=read_only)


def test_queue_files_hold_whole_entries() -> None:
    assert StoreConfig().queue_file_bytes == 6_000_000
    assert StoreConfig(mapped_file_size_consume_queue=101).queue_file_bytes == 120


def test_delay_levels() -> None:
    levels = delay_levels_ms(StoreConfig().message_delay_level)
    assert (len(levels), levels[0], levels[17]) == (18, 1_000, 7_200_000)
    assert delay_levels_ms("1d 3m") == (86_400_000, 180_000)
    assert delay_levels_ms("") == ()


@pytest.mark.parametrize("text", ["5", "5x", "xs", "1s -1s", "²s"])
def test_bad_delay_levels(text: str) -> None:
    with pytest.raises(SettingsError, match="messageDelayLevel"):
        StoreConfig(message_delay_level=text)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"mapped_file_size_commit_log": 100}, "mappedFileSizeCommitLog"),
        ({"mapped_file_size_consume_queue": 19}, "mappedFileSizeConsumeQueue"),
        ({"max_hash_slot_num": 0}, "maxHashSlotNum"),
        ({"max_index_num": 1}, "maxIndexNum"),
    ],
)
def test_sizes_that_cannot_work(changes: dict[str, int], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        StoreConfig(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "mapped_file_size_commit_log", "mapped_file_size_consume_queue",
        "mapped_file_size_consume_queue_ext", "max_hash_slot_num", "max_index_num",
    ],
)  # fmt: skip
def test_no_file_is_larger_than_a_java_broker_reads(name: str) -> None:
    with pytest.raises(SettingsError, match="2147483"):
        StoreConfig(**{name: 1 << 31})  # type: ignore[arg-type]
    assert StoreConfig(mapped_file_size_consume_queue=0x7FFF_FFF8).queue_file_bytes < 1 << 31
