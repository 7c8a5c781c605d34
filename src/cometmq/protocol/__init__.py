"""RocketMQ's remoting protocol without I/O: codes, frames, typed headers, bodies, connections.

Callers pass received bytes and the current time, and get events and bytes to send. This package
opens no sockets and reads no clock.
"""
