"""Metrics, liveness and readiness of a server, for monitoring systems."""
