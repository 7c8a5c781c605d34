"""The base-data platform and its copies."""
