"""The asyncio client for RocketMQ brokers, CometMQ's and Java's: producer, consumers, facade."""
