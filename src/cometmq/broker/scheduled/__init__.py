"""Messages that wait for their delivery time: delay levels and timers."""
