"""Reads of store directories of a Java broker or CometMQ, without a running broker."""
