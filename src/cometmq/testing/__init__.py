"""Support for tests of CometMQ, and of programs that use it: a real broker in a fixture."""
