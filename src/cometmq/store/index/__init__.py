"""The key index: positions in the log of the records with a key."""
