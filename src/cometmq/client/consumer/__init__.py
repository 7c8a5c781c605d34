"""Consumer side of the client: rebalance, pull loops, flow control, offsets, retries."""
