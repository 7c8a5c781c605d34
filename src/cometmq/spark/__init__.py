"""RocketMQ and Spark: the data source `rocketmq`, tables, and jobs. source.py is the entry
point."""
