"""Sockets round the sans-I/O protocol: accept loop, peers with fair turns, outgoing connections.

The only room that knows asyncio transports, and the only place where tasks are created.
"""
