"""Writes frames to topics: `df.write` and `writeStream` with format("rocketmq"), each row once."""
