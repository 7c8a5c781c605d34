"""Messages with a delivery time of their own: storage, delivery, recall and recovery."""
