"""Network layer around the protocol code: accept loop, fair scheduling of peers, outgoing
connections.

Only this package uses asyncio transports and creates tasks.
"""
