"""Filters of subscriptions: tag expressions with Java-compatible hash codes, and SQL92.

Pure: an expression and messages go in, and which messages match comes out.
"""
