"""Requests to name servers and brokers: connections, routes, offsets of queues and groups."""
