"""Settings of the store."""

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
    assert config.commit_log_directory == "/data/commitlog"
    assert used == {
        "mappedFileSizeCommitLog", "flushDiskType", "storePathRootDir", "fileReservedTime",
    }  # fmt: skip


def test_every_field_goes_both_ways() -> None:
    config = StoreConfig(store_path_commit_log="/fast/log")
    assert build(StoreConfig, to_properties(config))[0] == config
    assert config.commit_log_directory == "/fast/log"


def test_several_directories_of_the_log_are_for_reading() -> None:
    config = StoreConfig(store_path_commit_log="/a/, /b,,/a")
    assert config.commit_log_directories == ("/a", "/b")
    with pytest.raises(SettingsError, match=r"storePathCommitLog.*one directory"):
        _ = config.commit_log_directory
    one = StoreConfig(store_path_root_dir="/base")
    assert one.commit_log_directories == (one.commit_log_directory,) == ("/base/commitlog",)


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
