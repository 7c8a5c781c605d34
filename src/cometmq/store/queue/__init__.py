"""Consume queues: entries with the positions of a queue's records in the log."""
