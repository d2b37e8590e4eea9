"""Orders of a shop: each change commits an event. See docs/howto/applications.md.

orders.py place ID TOTAL | change ID TOTAL        SHOP is the connection string, as key=value pairs
"""

import json
import os
import sys

import django
from django.conf import settings
from django.db import connection, models, transaction
from psycopg.conninfo import conninfo_to_dict

shop = conninfo_to_dict(os.environ["SHOP"])
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "HOST": shop["host"], "PORT": shop["port"], "USER": shop["user"],
    "NAME": shop["dbname"],
}})  # fmt: skip
django.setup()


class Order(models.Model):
    id = models.UUIDField(primary_key=True)
    total = models.IntegerField()
    version = models.BigIntegerField(default=1)

    class Meta:
        app_label = "shop"
        db_table = "orders"


class NoCredit(Exception):
    pass


def enqueue(order: Order, event_type: str) -> None:
    """Adds an event to the transaction that has changed the order."""
    payload = json.dumps({"total": order.total})
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT outbox.enqueue('order', %s, %s, %s::jsonb, version => %s)",
            [str(order.id), event_type, payload, order.version],
        )


@transaction.atomic
def place(id: str, total: int) -> None:
    order = Order.objects.create(id=id, total=total)
    enqueue(order, "OrderPlaced")
    reserve_credit(order)


@transaction.atomic
def change(id: str, total: int) -> None:
    order = Order.objects.select_for_update().get(id=id)
    order.total = total
    order.version += 1
    order.save()
    enqueue(order, "OrderChanged")
    reserve_credit(order)


def reserve_credit(order: Order) -> None:
    if order.total > 1000:
        raise NoCredit("this takes the order back, and its event")


if __name__ == "__main__":
    {"place": place, "change": change}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
