"""Requests by which operators inspect and change a broker."""
