"""What tests of CometMQ, and tests of programs that use it, need: a real broker in a fixture."""
