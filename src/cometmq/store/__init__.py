"""The message store, in RocketMQ's file formats, byte for byte.

It owns commit log, consume queues, index files and checkpoint, the dispatch from the log to queues
and index, and the recovery after a clean stop or a crash. One event loop owns a store.
"""
