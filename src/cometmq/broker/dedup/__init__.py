"""Sends of a message that is stored already: known by their unique key, within a window of time."""
