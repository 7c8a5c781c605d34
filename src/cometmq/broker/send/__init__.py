"""Sends: checks, append, acknowledgement, answers."""
