"""Bytes and files captured from a real RocketMQ 4.9.7, and the scripts that captured them."""
