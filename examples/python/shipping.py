"""Keeps a table of shipments from a shop's orders. See docs/howto/applications.md.

shipping.py          SHOP and SHIPPING are connection strings
"""

import json
import os
import time

import psycopg
from psycopg.rows import dict_row


def handle(shipping: psycopg.Connection, event: dict) -> None:
    with shipping.transaction():
        new = shipping.execute("SELECT inbox.begin_event('shipping', %s, 'shop') AS new", [event["event_id"]])
        if not new.fetchone()["new"]:
            return  # it came before
        order = {**json.loads(event["payload"]), "order_id": event["aggregate_id"], "version": event["version"]}
        shipping.execute("SELECT inbox.apply('shipment', ARRAY['order_id'], 'version', %s::jsonb)", [json.dumps(order)])


def main() -> None:
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(os.environ["SHOP"], **options) as shop, \
            psycopg.connect(os.environ["SHIPPING"], **options) as shipping:  # fmt: skip
        while True:
            events = shop.execute("SELECT * FROM outbox.fetch('shipping')").fetchall()
            for event in events:
                handle(shipping, event)
            if events:
                shop.execute("SELECT outbox.ack(%s)", [events[0]["token"]])
            else:
                time.sleep(0.1)


if __name__ == "__main__":
    main()
