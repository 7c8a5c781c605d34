"""Network layer around the protocol code: accepts connections, serves them in fair turns, and
connects to other processes.

Only this package uses asyncio transports and creates tasks.
"""
