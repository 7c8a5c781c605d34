"""Reads of store directories, a Java broker's or CometMQ's, without any broker."""
