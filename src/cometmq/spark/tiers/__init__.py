"""Reads of several tiers as one: an archive, store directories, and the live topics."""
