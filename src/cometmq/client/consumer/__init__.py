"""Consumer groups on the client side: rebalance, pull loops, flow control, offsets, retry."""
