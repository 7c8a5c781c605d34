"""What monitoring systems ask a server: metrics, whether it is alive, whether it is ready."""
