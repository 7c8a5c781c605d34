"""Client for CometMQ's and Java's RocketMQ brokers: producer, consumers, and a blocking facade."""
