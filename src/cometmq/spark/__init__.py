"""The Spark data source `rocketmq`: batch and streaming reads, Arrow batches, exact offsets."""
