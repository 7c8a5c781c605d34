"""Against real Java peers: RocketMQ 4.9.7 as published, its broker, client and tools."""
