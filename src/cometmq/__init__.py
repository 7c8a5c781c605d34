"""CometMQ: Apache RocketMQ rebuilt in Python: broker, name server, clients, tools, Spark.

The folders are the rooms of the house; `docs/architecture.md` says what each is for and which may
import which.
"""
