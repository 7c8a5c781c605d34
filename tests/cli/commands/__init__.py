"""Whole commands against a real cluster."""
