"""Orders, invoices, and the outbox."""

from typing import ClassVar

from django.db import migrations, models

from examples.services.shop.messaging import outbox


def numbered(name: str) -> migrations.CreateModel:
    """A table of numbers."""
    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("number", models.IntegerField(unique=True)),
    ]
    return migrations.CreateModel(name, fields)


class Migration(migrations.Migration):
    operations: ClassVar = [
        numbered("Order"),
        numbered("Invoice"),
        migrations.RunSQL(outbox.schema(), "DROP TABLE outbox"),
    ]
