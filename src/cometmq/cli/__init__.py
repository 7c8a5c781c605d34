"""The `cometmq` command."""
