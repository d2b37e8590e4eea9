"""Keeps the catalog's copy of the shop's videos, with nothing but SQL functions.

    consume.py SHOP CATALOG DESTINATION        connection strings, and a pull destination of the shop

The tables are those of ../catalog. Ends on SIGTERM, when what it has fetched is settled.
"""

import signal
import sys
import time

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

CONSUMER = "catalog"
ROW = "'catalog_read.video_projection', ARRAY['video_id'], 'version', convert_from(%(payload)s, 'UTF8')::jsonb"
FIELDS = ("event_id occurred_at position version schema_version source_event_id topic aggregate_type "
          "aggregate_id event_type ordering_key content_type headers payload").split()  # fmt: skip


def apply(catalog, event):
    function = "inbox.remove" if event["event_type"] == "VideoDeleted" else "inbox.apply"
    catalog.execute(f"SELECT {function}({ROW})", event)
    catalog.execute(
        "INSERT INTO catalog_read.video_history (event_id, video_id, version, event_type) "
        "VALUES (%(event_id)s, %(aggregate_id)s, %(version)s, %(event_type)s)", event)  # fmt: skip


def handle(catalog, destination, event):
    """Applies the event, unless that was done before."""
    with catalog.transaction():
        begin = "SELECT inbox.begin_event(%s, %s, %s) AS new"
        if not catalog.execute(begin, (CONSUMER, event["event_id"], destination)).fetchone()["new"]:
            return
        apply(catalog, event)
        if event["attempts"] > 0:
            catalog.execute("SELECT inbox.end_failure(%s, %s)", (CONSUMER, [event["event_id"]]))
        catalog.execute(
            "SELECT inbox.save_offset(%s, %s, %s, %s)",
            (CONSUMER, destination, str(event["position"]), event["occurred_at"]))  # fmt: skip


def is_dead(catalog, destination, event, error):
    """Counts the failed attempt. True: it was the last, and the event is kept as a dead letter."""
    values = {**{field: event[field] for field in FIELDS}, "headers": Jsonb(event["headers"]),
              "consumer": CONSUMER, "source": destination, "error": error.diag.message_primary or str(error),
              "sqlstate": error.sqlstate, "detail": error.diag.message_detail, "hint": error.diag.message_hint,
              "context": error.diag.context}  # fmt: skip
    arguments = ", ".join(f'"{name}" => %({name})s' for name in values)
    return catalog.execute(f"SELECT inbox.fail_event({arguments}) AS dead", values).fetchone()["dead"]


def consume(shop, catalog, destination, events):
    token, skipped = events[0]["token"], set()
    for event in events:
        if event["event_id"] in skipped:
            continue  # it comes behind one that failed, and will be fetched after that
        try:
            handle(catalog, destination, event)
        except psycopg.OperationalError:  # the event is not to blame
            shop.execute("SELECT outbox.release(%s)", (token,))
            raise
        except psycopg.DatabaseError as error:
            if not is_dead(catalog, destination, event, error):
                nack = "SELECT outbox.nack(%s, %s, %s)"
                skipped.update(row["nack"] for row in shop.execute(nack, (token, event["event_id"], str(error))))
    shop.execute("SELECT outbox.ack(%s)", (token,))


def run(shop_conninfo, catalog_conninfo, destination):
    stopping = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    options = {"autocommit": True, "row_factory": dict_row}
    with psycopg.connect(shop_conninfo, **options) as shop, psycopg.connect(catalog_conninfo, **options) as catalog:
        while not stopping:
            events = shop.execute("SELECT * FROM outbox.fetch(%s)", (destination,)).fetchall()
            if not events:
                time.sleep(0.1)
                continue
            try:
                consume(shop, catalog, destination, events)
            except psycopg.Error as error:
                if error.sqlstate != "OL001":
                    raise
                # We were too slow, and others have them, or will.


if __name__ == "__main__":
    run(*sys.argv[1:])
