"""Filters of subscriptions: tag expressions with Java-compatible hash codes, and SQL92.

Pure: takes an expression and messages, returns whether they match.
"""
