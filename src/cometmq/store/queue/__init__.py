"""Consume queues: entries that say where a queue's records lie in the log."""
