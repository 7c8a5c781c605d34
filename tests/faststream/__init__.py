"""FastStream on RocketMQ: the broker against a cluster, and in memory."""
