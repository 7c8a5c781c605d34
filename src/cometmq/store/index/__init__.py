"""The index: where the records with a key lie in the log."""
