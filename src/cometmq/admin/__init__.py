"""Typed administration calls over the protocol, for the command line, web pages and Spark."""
