"""The other side of the network: how brokers are reached, and what they are asked."""
