"""RocketMQ and Spark: the data source `rocketmq`, tables, and jobs. source.py is its door."""
