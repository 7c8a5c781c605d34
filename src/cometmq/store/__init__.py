"""The message store, in files that are RocketMQ's own, byte for byte.

Commit log, consume queues, index files, checkpoint; dispatch from the first to the others;
recovery after a clean stop and after a crash. One event loop owns a store.
"""
