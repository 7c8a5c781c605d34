"""Detection of repeated sends by their unique keys, within a window of time."""
