"""Reads of topics, batch and stream: options, positions, plans, and the rows of a task."""
