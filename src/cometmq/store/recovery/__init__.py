"""Recovery at a start: finds the log's end, checks derived files, rebuilds what is missing."""
