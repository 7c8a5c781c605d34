"""The write path: batches, and the dispatch of log records to queue entries and index entries."""
