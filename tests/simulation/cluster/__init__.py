"""A whole cluster in one process: name servers, brokers and clients, on a simulated network."""
