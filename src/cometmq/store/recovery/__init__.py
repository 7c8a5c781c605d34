"""What a start does: find the log's end, check what is derived from it, rebuild what is missing."""
