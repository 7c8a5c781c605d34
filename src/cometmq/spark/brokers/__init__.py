"""Requests to name servers and brokers: connections, routes, offsets, consumer groups."""
