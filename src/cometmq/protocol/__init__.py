"""The RocketMQ remoting protocol: codes, frames, typed headers, bodies and a sans-I/O peer.

Bytes go in, events come out; time is an argument. Nothing here opens a socket or reads a clock.
"""
