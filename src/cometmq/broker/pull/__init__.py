"""Pulls: filters, reading, answers, and pulls that wait."""
