"""Pipelines that run as they are: each is a function of a session and its options."""
