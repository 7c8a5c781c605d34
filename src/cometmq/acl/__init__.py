"""Access control of servers: who may send which requests (ACL 1.0 of RocketMQ 4.9)."""
