"""The index's hash of a key: Java's ``String.hashCode`` of ``topic#key``."""

from __future__ import annotations

from cometmq.speedups import index_hashes, java_hash


def topic_prefix(topic: str) -> int:
    """Return the hash of ``topic#``, unsigned: each key's hash begins with it."""
    return java_hash(topic + "#") & 0xFFFF_FFFF


def index_hash(prefix: int, key: str) -> int:
    """Return the hash of one key, never negative; ``prefix`` is its topic's."""
    return index_hashes((prefix,), (key,))[0]
