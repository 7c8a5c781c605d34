"""RocketMQ remoting protocol: codes, frames, typed headers, bodies and connections without I/O.

Callers pass bytes and the time, and receive events. This package opens no sockets and reads no
clock.
"""
