"""Runtime figures of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.store.messagestore import MessageStore


def numbers(store: MessageStore) -> dict[str, int | float]:
    """Return positions, sizes and counts by name; offsets and sizes in bytes."""
    log, flusher = store.log, store.flusher
    space = store.files.disk_space(store.config.commit_log_directory)
    return {
        "commit_log_min_offset": log.segments.start,
        "commit_log_max_offset": log.written,
        "durable_offset": log.durable,
        "dispatched_offset": store.dispatcher.position,
        "dispatch_behind_bytes": log.written - store.dispatcher.position,
        "flush_behind_bytes": log.written - log.durable,
        "commit_log_files": len(log.segments.files),
        "disk_used_ratio": space.used_ratio,
        "disk_free_bytes": space.free_bytes,
        "queues": sum(map(len, store.known.values())),
        "dirty_queues": store.dispatcher.dirty_count,
        "index_end_offset": store.index.end_phys,
        "put_failures": store.put_failures,
        "sealed_files": len(store.seals.bases),
        "damaged_blocks": sum(len(file.damaged) for file in log.segments.files),
        "inline_syncs": flusher.inline_count,
        "threaded_syncs": flusher.threaded_count,
    }
