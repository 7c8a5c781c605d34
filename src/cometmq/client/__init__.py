"""Client for brokers of CometMQ and of RocketMQ: producer, consumers, and a blocking facade."""
