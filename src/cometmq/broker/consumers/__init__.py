"""Consumer groups: members, offsets, queue locks, retries."""
