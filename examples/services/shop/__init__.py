"""A Django project with an outbox: ``python -m examples.services.shop migrate``."""
