"""From a record in the log to its queue entry and its index entries."""
