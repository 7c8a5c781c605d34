"""Messages that wait for their time: delay levels and timers."""
