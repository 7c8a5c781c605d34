"""Orders and invoices."""

from django.db import models


class Order(models.Model):
    number = models.IntegerField(unique=True)


class Invoice(models.Model):
    number = models.IntegerField(unique=True)
