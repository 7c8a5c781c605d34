"""The read path: queues for consumers, and records by key, time or offset."""
