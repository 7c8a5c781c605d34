"""What is published and what runs servers as services: wheels, units, images, manifests."""
