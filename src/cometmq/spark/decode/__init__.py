"""Stored records to Arrow columns."""
