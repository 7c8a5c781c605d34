"""Messages with a delivery time of their own: waiting, delivered when due, recalled, kept."""
