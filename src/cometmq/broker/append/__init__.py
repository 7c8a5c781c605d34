"""Appends: one commit per turn of the event loop, and the acknowledgement of its requests."""
