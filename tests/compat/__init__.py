"""Against real Java peers: brokers, clients and tools of RocketMQ 4.9.7 and 5.5.0 as published."""
