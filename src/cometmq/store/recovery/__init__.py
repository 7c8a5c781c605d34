"""Recovery at a start: find the log's end, check queue and index files, rebuild missing entries."""
