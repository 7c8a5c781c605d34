"""Reading: a queue for a consumer, and records by key, time or offset."""
