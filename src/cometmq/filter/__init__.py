"""Which messages a subscription wants: tag expressions and their Java-compatible hash codes.

Pure: an expression and a message go in, a verdict comes out.
"""
