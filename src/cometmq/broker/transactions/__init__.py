"""Transactions: half messages, their end, and questions to producers."""
