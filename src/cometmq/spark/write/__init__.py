"""Writes data frames to topics: `df.write` and `writeStream` with format("rocketmq")."""
