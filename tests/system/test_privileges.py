"""Privileges on every object of both extensions, and the abilities of roles with each right.

A new function, table, view or type of the schemas outbox and inbox is entered into USERS below; until then the
test fails. An object for other roles is entered into parts_of_right.sql as well. Objects in outbox_internal and inbox_internal
are for no other role, unless they are entered into USERS_OF_INTERNALS with the reason.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql

from cluster import REPOSITORY, Cluster
from database import Database, NewDatabase
from receiver import Receiver, answer, everything
from waiting import wait_until

# Rights of each role. `public` has none.
GRANTS = {
    "producer": "outbox.grant_produce",
    "capturer": "outbox.grant_capture",
    "fetcher": "outbox.grant_fetch",
    "operator": "outbox.grant_operate",
    "monitor": "outbox.grant_monitor",
    "sender": "inbox.grant_send",
    "reader": "inbox.grant_read",
    "consumer": "inbox.grant_consume",
    "inbox operator": "inbox.grant_operate",
    "inbox monitor": "inbox.grant_monitor",
    "relay": "outbox.grant_relay",
    "public": None,
}

NOBODY = ""

# Objects that roles may use, except owners and superusers: EXECUTE, SELECT, USAGE.
USERS = {
    "schema outbox": "producer, capturer, fetcher, operator, monitor",
    "schema outbox_internal": "capturer, operator, monitor, relay",
    "wrapper pg_outbox": NOBODY,
    "table outbox.backfill_row": NOBODY,
    "table outbox.backfill_task": NOBODY,
    "table outbox.batch": NOBODY,
    "table outbox.captured": NOBODY,
    "table outbox.cursor": NOBODY,
    "table outbox.delivery": NOBODY,
    "table outbox.endpoint": "operator",
    "table outbox.endpoint_state": NOBODY,
    "table outbox.installation": NOBODY,
    "table outbox.endpoint_total": NOBODY,
    "table outbox.event": NOBODY,
    "table outbox.event_0": NOBODY,
    "table outbox.event_1": NOBODY,
    "table outbox.event_2": NOBODY,
    "table outbox.event_3": NOBODY,
    "table outbox.arriving_key": NOBODY,
    "table outbox.arriving_shard": NOBODY,
    "table outbox.expression": NOBODY,
    "table outbox.operation": "operator",
    "table outbox.position_gap": NOBODY,
    "table outbox.producer": NOBODY,
    "table outbox.receipt": "operator",
    "table outbox.receipt_0": NOBODY,
    "table outbox.receipt_1": NOBODY,
    "table outbox.receipt_turn": NOBODY,
    "table outbox.relay": NOBODY,
    "table outbox.relay_lease": NOBODY,
    "table outbox.relay_status": NOBODY,
    "table outbox.ring": NOBODY,
    "table outbox.source_event": NOBODY,
    "table outbox.transaction": NOBODY,
    "view outbox.backfill_progress": "capturer, operator, monitor",
    "view outbox.blocked_key": "operator",
    "view outbox.captures": "capturer",
    "view outbox.dead_letter": "operator",
    "view outbox.cluster_status": "monitor",
    "view outbox.destination": NOBODY,
    "view outbox.endpoint_status": "operator, monitor",
    "view outbox.event_progress": NOBODY,
    "view outbox.lease": "monitor",
    "view outbox.operations": "operator",
    "view outbox.replay_progress": "operator",
    "view outbox.segment": "monitor",
    "view outbox.status": "monitor",
    "view outbox.destinations": "monitor",
    "sequence outbox.destination_number": NOBODY,
    "sequence outbox.event_position": NOBODY,
    "sequence outbox.operation_id": NOBODY,
    "sequence outbox.position_era": NOBODY,
    "type outbox.new_event": "producer",
    "type outbox.found_event": "",
    "function outbox.absent_workers()": "monitor",
    "function outbox.ack(uuid)": "fetcher",
    "function outbox.adopt(regclass,text,boolean,text,text,text,name[])": NOBODY,
    "function outbox.backfill(regclass,name,integer,integer,integer)": "capturer",
    "function outbox.backlog(name)": "monitor",
    "function outbox.cancel_backfill(bigint,outbox_internal.caller)": "capturer, operator",
    "function outbox.cancel_replay(bigint,outbox_internal.caller)": "operator",
    "function outbox.capture(regclass,text,name[],name,text,name,name[],jsonb,name[],name[],text,text,boolean,text,text,text,text,text,text,text,text,text,boolean,boolean)": "capturer",
    "function outbox.capture_condition(regclass)": "capturer",
    "function outbox.capture_row()": ", ".join(GRANTS),
    "function outbox.capture_truncate()": ", ".join(GRANTS),
    "function outbox.check_destination(text,text,outbox_internal.caller)": "operator",
    "function outbox.create_outbox_view(text,text,text,text)": NOBODY,
    "function outbox.delete_endpoint(name,name,outbox_internal.caller)": "operator",
    "function outbox.discard(name,uuid[],text,text,text,text,text,text,text,boolean,outbox_internal.caller)": "operator",
    "function outbox.enqueue(outbox.new_event[])": "producer",
    "function outbox.enqueue(character varying,anycompatiblenonarray,text,json,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)": "producer",
    "function outbox.enqueue(text,anycompatiblenonarray,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)": "producer",
    "function outbox.enqueue(text,anycompatiblenonarray,text,bytea,text,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)": "producer",
    "function outbox.enqueue(text,text,text,bytea,text,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)": "producer",
    "function outbox.enqueue(text,text,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)": "producer",
    "function outbox.destination_options()": "operator, monitor",
    "function outbox.endpoint_secret(name,name,outbox_internal.caller)": "operator",
    "function outbox.event_status(uuid,outbox_internal.caller)": "operator",
    "function outbox.find_event(uuid)": "",
    "function outbox.find_events(text,text,timestamp with time zone,text,text,integer)": "",
    "function outbox.extend(uuid,interval)": "fetcher",
    'function outbox."fetch"(name,integer,interval,outbox_internal.caller)': "fetcher",
    "function outbox.grant_capture(regrole,text,outbox_internal.caller)": NOBODY,
    "function outbox.grant_fetch(regrole,name)": NOBODY,
    "function outbox.grant_monitor(regrole)": NOBODY,
    "function outbox.grant_operate(regrole)": NOBODY,
    "function outbox.grant_produce(regrole,text,outbox_internal.caller)": NOBODY,
    "function outbox.grant_relay(regrole)": NOBODY,
    "function outbox.health(interval)": "monitor",
    "function outbox.selects_nothing(name)": "monitor",
    "function outbox.insert_event()": NOBODY,
    "function outbox.metrics()": "monitor",
    "function outbox.nack(uuid,uuid,text,boolean)": "fetcher",
    "function outbox.oldest_after(pg_snapshot)": "monitor",
    "function outbox.pause(name,text,outbox_internal.caller)": "operator",
    "function outbox.payload_as_jsonb(bytea)": ", ".join(GRANTS),
    "function outbox.payload_jsonb(text,bytea)": "operator",
    "function outbox.payload_text(text,bytea)": "operator",
    "function outbox.pause_backfill(bigint,outbox_internal.caller)": "capturer, operator",
    "function outbox.redrive(name,uuid[],text,text,text,text,text,text,text,outbox_internal.caller)": "operator",
    "function outbox.redrive(name,text)": "operator",
    "function outbox.redrive(name,uuid)": "operator",
    "function outbox.refuse_change()": NOBODY,
    "function outbox.require_shard(regclass,text)": "producer",
    "function outbox.skip_shard(bigint,text,outbox_internal.caller)": "operator",
    "function outbox.release(uuid)": "fetcher",
    "function outbox.replay(name,timestamp with time zone,timestamp with time zone,text,text,text,text,text,uuid[],text,outbox_internal.caller)": "operator",
    "function outbox.resume(name,text,outbox_internal.caller)": "operator",
    "function outbox.claim_identity(text,outbox_internal.caller)": NOBODY,
    "function outbox.resume_backfill(bigint,outbox_internal.caller)": "capturer, operator",
    "function outbox.revoke_capture(regrole)": NOBODY,
    "function outbox.revoke_fetch(regrole)": NOBODY,
    "function outbox.revoke_monitor(regrole)": NOBODY,
    "function outbox.revoke_operate(regrole)": NOBODY,
    "function outbox.revoke_produce(regrole)": NOBODY,
    "function outbox.revoke_relay(regrole)": NOBODY,
    "function outbox.seek(name,bigint,text,outbox_internal.caller)": "operator",
    "function outbox.seek(name,text,text,outbox_internal.caller)": "operator",
    "function outbox.seek(name,timestamp with time zone,text,outbox_internal.caller)": "operator",
    "function outbox.segment_held_by(integer)": "monitor",
    "function outbox.uncapture(regclass)": "capturer",
    "function outbox.version()": "operator, monitor",
    "function outbox.workers()": "monitor",
    "schema inbox": "sender, reader, consumer, inbox operator, inbox monitor",
    "schema inbox_internal": "reader, consumer, inbox operator, inbox monitor",
    "table inbox.bucket_check": NOBODY,
    "table inbox.claimed": NOBODY,
    "table inbox.consumer": NOBODY,
    "table inbox.consumer_offset": NOBODY,
    "table inbox.dead_message": NOBODY,
    "table inbox.gap": NOBODY,
    "table inbox.instance": NOBODY,
    "table inbox.key_lock": NOBODY,
    "table inbox.message": NOBODY,
    "table inbox.offset_reset": NOBODY,
    "table inbox.operation": "inbox operator",
    "table inbox.processed": NOBODY,
    **{f"table inbox.processed_{bucket}": NOBODY for bucket in range(33)},
    "table inbox.progress": NOBODY,
    "table inbox.progress_change": NOBODY,
    "table inbox.setting": NOBODY,
    "table inbox.subscription": NOBODY,
    "table inbox.tombstone": NOBODY,
    "table inbox.waiting": NOBODY,
    "view inbox.dead_letter": "reader, consumer, inbox operator",
    "view inbox.gaps": "inbox monitor",
    "view inbox.lag": "inbox monitor",
    "view inbox.obstacle": NOBODY,
    "view inbox.offsets": "inbox monitor",
    "view inbox.operations": "inbox operator",
    "view inbox.status": "inbox monitor",
    "view inbox.waiting_keys": "reader, consumer, inbox operator",
    "sequence inbox.consumer_id_seq": NOBODY,
    "sequence inbox.message_seq_seq": NOBODY,
    "sequence inbox.operation_id_seq": NOBODY,
    "sequence inbox.subscription_number_seq": NOBODY,
    "function inbox.accept_gap(text,text,text,inbox_internal.caller)": "inbox operator",
    "function inbox.apply(regclass,text[],text,jsonb)": "reader, consumer",
    "function inbox.begin_event(text,uuid,text,inbox_internal.caller)": "consumer",
    "function inbox.begin_events(text,uuid[],text,inbox_internal.caller)": "consumer",
    "function inbox.claim(text,integer,interval,inbox_internal.caller)": "consumer",
    "function inbox.complete(uuid,uuid,inbox_internal.caller)": "consumer",
    "function inbox.confirm(text)": "reader",
    "function inbox.confirm_reset(text,text,bigint,text,inbox_internal.caller)": "consumer",
    "function inbox.continue_trace(jsonb)": "reader, consumer",
    "function inbox.create_consumer(text,inbox_internal.caller)": "consumer",
    "function inbox.discard(text,uuid[],text,inbox_internal.caller)": "inbox operator",
    "function inbox.drop_consumer(text,text,boolean,inbox_internal.caller)": "inbox operator",
    "function inbox.end_failure(text,uuid[],inbox_internal.caller)": "consumer",
    "function inbox.event_status(uuid,inbox_internal.caller)": "reader, consumer, inbox operator, inbox monitor",
    "function inbox.extend(uuid,interval,inbox_internal.caller)": "consumer",
    "function inbox.fail(uuid,uuid,text,text,boolean,text,text,text,inbox_internal.caller)": "consumer",
    "function inbox.fail_event(text,text,uuid,timestamp with time zone,bigint,bigint,integer,uuid,text,text,text,text,text,text,jsonb,bytea,text,text,boolean,integer,text,text,text,boolean,inbox_internal.caller)": "consumer",
    "function inbox.forget(text,timestamp with time zone,text,inbox_internal.caller)": "inbox operator",
    "function inbox.give_consumer(text,regrole,text,inbox_internal.caller)": "inbox operator",
    "function inbox.grant_consume(regrole)": NOBODY,
    "function inbox.grant_monitor(regrole)": NOBODY,
    "function inbox.grant_operate(regrole)": NOBODY,
    "function inbox.grant_read(regrole)": NOBODY,
    "function inbox.grant_send(regrole)": NOBODY,
    "function inbox.health(interval,inbox_internal.caller)": "inbox monitor",
    "function inbox.json(inbox.message)": "reader",
    "function inbox.load_offset(text,text,inbox_internal.caller)": "consumer",
    "function inbox.metrics()": "inbox monitor",
    "function inbox.own_subscriptions(inbox_internal.caller)": "reader",
    "function inbox.payload_jsonb(text,bytea)": "reader, consumer, inbox operator",
    "function inbox.payload_text(text,bytea)": "reader, consumer, inbox operator",
    "function inbox.prune(integer)": "reader, consumer, inbox operator",
    "function inbox.receive(text,text,uuid[],timestamp with time zone[],bigint[],bigint[],integer[],uuid[],text[],text[],text[],text[],text[],text[],jsonb[],bytea[])": "sender",
    "function inbox.redrive(text,uuid[],text,inbox_internal.caller)": "inbox operator",
    "function inbox.redrive(text,text)": "inbox operator",
    "function inbox.redrive(text,uuid)": "inbox operator",
    "function inbox.release(uuid,inbox_internal.caller)": "consumer",
    "function inbox.remove(regclass,text[],text,jsonb)": "reader, consumer",
    "function inbox.report_gap(text,text,text,bigint,boolean,text,inbox_internal.caller)": "consumer",
    "function inbox.report_progress(text,text,bigint,bigint,interval,interval,interval,bigint[],double precision,inbox_internal.caller)": "consumer",
    "function inbox.reset_offset(text,text,timestamp with time zone,text,text,inbox_internal.caller)": "inbox operator",
    "function inbox.revoke_consume(regrole)": NOBODY,
    "function inbox.revoke_monitor(regrole)": NOBODY,
    "function inbox.revoke_operate(regrole)": NOBODY,
    "function inbox.revoke_read(regrole)": NOBODY,
    "function inbox.revoke_send(regrole)": NOBODY,
    "function inbox.save_offset(text,text,text,timestamp with time zone,text,text,inbox_internal.caller)": "consumer",
    "function inbox.set_policy(text,integer,interval,interval,text,inbox_internal.caller)": "reader, consumer",
    "function inbox.set_window(interval,inbox_internal.caller)": "inbox operator",
    "function inbox.subscribe(text,text,regproc)": "reader",
    "function inbox.unsubscribe(text,text,regproc,inbox_internal.caller)": "reader",
    "function inbox.version()": "consumer, inbox monitor",
    "function inbox.wait_for(regclass,jsonb,anycompatible,text,interval)": "reader, consumer",
    "function inbox.wait_for(text,uuid,interval)": "reader, consumer",
    "function inbox.was_applied(text,uuid,inbox_internal.caller)": "consumer",
}

# Functions of outbox_internal and inbox_internal that work with the rights of their caller, and so must be granted.
# All others are called by functions that have the rights of the owner, or by workers.
CAPTURE = "outbox.capture(), uncapture() and captures work with the rights of the owner of a table, and call it"
SUBSCRIBE = "inbox.subscribe() and confirm() work with the rights of the subscriber, and call it"
RELAY = "outbox-relay calls it"
PROCESSOR = "a processor, which works as the role of its consumer, calls it"
PROJECTION = "inbox.apply() and remove() work with the caller's rights on a projection, and call it"
WAIT = "inbox.wait_for() works with the caller's rights on a projection, and calls it"
TRACE = "inbox.continue_trace() works with the rights of a consumer, and calls it"
VIEW = "a view calls it, with the rights of its reader"
USERS_OF_INTERNALS = {
    "outbox_internal.refuse_restricted": ("capturer", CAPTURE),
    "outbox_internal.save_captured": ("capturer", CAPTURE),
    "outbox_internal.forget_captured": ("capturer", CAPTURE),
    "outbox_internal.check_captured": ("capturer", CAPTURE),
    "outbox_internal.check_capturable": ("capturer", CAPTURE),
    "outbox_internal.check_choice": ("capturer", CAPTURE),
    "outbox_internal.check_moves": ("capturer", CAPTURE),
    "outbox_internal.check_identity": ("capturer", CAPTURE),
    "outbox_internal.unique_keys": ("capturer", CAPTURE),
    "outbox_internal.aggregate_type_of": ("capturer", CAPTURE),
    "outbox_internal.warn_of_namesake": ("capturer", CAPTURE),
    "outbox_internal.key_is_unique": ("capturer", VIEW),
    "outbox_internal.follow_names": ("capturer", VIEW),
    "outbox_internal.add_capture_triggers": ("capturer", CAPTURE),
    "outbox_internal.copy_capture_triggers": ("capturer", CAPTURE),
    "outbox_internal.drop_capture_triggers": ("capturer", CAPTURE),
    "outbox_internal.set_capture_fire": ("capturer", CAPTURE),
    "outbox_internal.captured_tree": ("capturer", CAPTURE),
    "outbox_internal.event_type_of": ("capturer", CAPTURE),
    "outbox_internal.row_key_of": ("capturer", CAPTURE),
    "outbox_internal.columns_of": ("capturer", CAPTURE),
    "outbox_internal.trigger_state": ("capturer", VIEW),
    "outbox_internal.has_capture_triggers": ("capturer", VIEW),
    "outbox_internal.is_captured_shard": ("capturer", VIEW),
    "outbox_internal.lock_captured": ("capturer", CAPTURE),
    "outbox_internal.add_backfill": ("capturer", "outbox.backfill() works with the caller's rights, and calls it"),
    "outbox_internal.backfill_waits_for": ("capturer, operator, monitor", VIEW),
    "outbox_internal.oldest_unread_events": ("monitor", VIEW),
    "outbox_internal.list_destinations": ("monitor", VIEW),
    "outbox_internal.refused_as_copy": ("monitor", VIEW),
    "outbox_internal.ask_nodes": ("monitor", VIEW),
    "outbox_internal.node_status": (
        "monitor",
        "other nodes of a Citus cluster call it, as the reader of outbox.cluster_status",
    ),
    "outbox_internal.blocked_keys": ("operator", VIEW),
    "outbox_internal.for_client": ("capturer, operator, monitor", VIEW),
    "outbox_internal.has_form": ("capturer, operator, monitor", VIEW),
    "outbox_internal.first_of_key": ("operator", VIEW),
    "outbox_internal.relay_settings": ("relay", RELAY),
    "outbox_internal.relay_destinations": ("relay", RELAY),
    "outbox_internal.relay_beat": ("relay", RELAY),
    "outbox_internal.relay_take": ("relay", RELAY),
    "outbox_internal.relay_begin": ("relay", RELAY),
    "outbox_internal.relay_begin_expressions": ("relay", RELAY),
    "outbox_internal.relay_check_expressions": ("relay", RELAY),
    "outbox_internal.relay_look_expressions": ("relay", RELAY),
    "outbox_internal.relay_rows_expressions": ("relay", RELAY),
    "outbox_internal.relay_retries_expressions": ("relay", RELAY),
    "outbox_internal.relay_follow": ("relay", RELAY),
    "outbox_internal.relay_wake": ("relay", RELAY),
    "outbox_internal.relay_leave": ("relay", RELAY),
    "outbox_internal.relay_look": ("relay", RELAY),
    "outbox_internal.relay_probe": ("relay", RELAY),
    "outbox_internal.relay_entries": ("relay", RELAY),
    "outbox_internal.relay_rows": ("relay", RELAY),
    "outbox_internal.relay_pause": ("relay", RELAY),
    "outbox_internal.relay_save": ("relay", RELAY),
    "outbox_internal.relay_record": ("relay", RELAY),
    "outbox_internal.relay_retries": ("relay", RELAY),
    "outbox_internal.relay_recover": ("relay", RELAY),
    "outbox_internal.relay_note": ("relay", RELAY),
    "outbox_internal.relay_report": ("relay", RELAY),
    "outbox_internal.relay_maintain": ("relay", RELAY),
    "outbox_internal.relay_endpoints": ("relay", RELAY),
    "inbox_internal.add_subscription": ("reader", SUBSCRIBE),
    "inbox_internal.save_confirmation": ("reader", SUBSCRIBE),
    "inbox_internal.lock_subscriptions": ("reader", SUBSCRIBE),
    "inbox_internal.wake": ("reader", SUBSCRIBE),
    "inbox_internal.confirmed_subscriptions": ("reader", PROCESSOR),
    "inbox_internal.next_messages": ("reader", PROCESSOR),
    "inbox_internal.next_attempt": ("reader", PROCESSOR),
    "inbox_internal.process": ("reader", PROCESSOR),
    "inbox_internal.take": ("reader", PROCESSOR),
    "inbox_internal.changes_trace": ("reader", PROCESSOR),
    "inbox_internal.is_traceparent": ("reader, consumer", TRACE),
    "inbox_internal.is_tracestate": ("reader, consumer", TRACE),
    "inbox_internal.record_failure": ("reader", PROCESSOR),
    "inbox_internal.record_end": ("reader", PROCESSOR),
    "inbox_internal.save_progress": ("reader", PROCESSOR),
    "inbox_internal.columns_of": ("reader, consumer", PROJECTION),
    "inbox_internal.row_parts": ("reader, consumer", PROJECTION),
    "inbox_internal.key_parts": ("reader, consumer", PROJECTION),
    "inbox_internal.type_of_column": ("reader, consumer", PROJECTION),
    "inbox_internal.without_domain": ("reader, consumer", PROJECTION),
    "inbox_internal.operator_in": ("reader, consumer", PROJECTION),
    "inbox_internal.operator_of": ("reader, consumer", PROJECTION),
    "inbox_internal.has_hash": ("reader, consumer", PROJECTION),
    "inbox_internal.portable_text": ("reader, consumer", PROJECTION),
    "inbox_internal.check_row": ("reader, consumer", PROJECTION),
    "inbox_internal.check_key": ("reader, consumer", PROJECTION),
    "inbox_internal.run": ("reader, consumer", PROJECTION),
    "inbox_internal.tombstones": ("reader, consumer", PROJECTION),
    "inbox_internal.lock_insert": ("reader, consumer", PROJECTION),
    "inbox_internal.lock_removal": ("reader, consumer", PROJECTION),
    "inbox_internal.leave_tombstone": ("reader, consumer", PROJECTION),
    "inbox_internal.wait_until": ("reader, consumer", WAIT),
    "inbox_internal.wait_on": ("reader, consumer", WAIT),
    "inbox_internal.for_client": ("reader, consumer, inbox operator, inbox monitor", VIEW),
    "inbox_internal.has_form": ("reader, consumer, inbox operator, inbox monitor", VIEW),
    "inbox_internal.is_own": ("reader, consumer, inbox operator, inbox monitor", VIEW),
}


# Tables that roles may write, in rows that a policy allows them. Not DELETE, nor UPDATE of the table as a whole:
# these would let a role lock it.
WRITES = {("operator", "table outbox.endpoint"): {"INSERT", "UPDATE"}}


class People:
    """A role per right. Roles belong to the whole cluster, so each test has its own."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.roles: list[str] = []

    def add(self, kind: str, *options: str) -> str:
        role = f"{kind}_{self.database.name}".replace(" ", "_")
        self.database.execute(f"CREATE ROLE {role} LOGIN {' '.join(options)}")
        self.roles.append(role)
        return role

    def with_right(self, kind: str, *arguments: object) -> str:
        """A new role that was given one right."""
        role = self.add(kind)
        if GRANTS[kind] is not None:
            values = ", ".join(["%s"] * (1 + len(arguments)))
            self.database.execute(f"SELECT {GRANTS[kind]}({values})", (role, *arguments))
        return role

    def connect(self, role: str) -> psycopg.Connection:
        return self.database.cluster.connect(self.database.name, role)

    def remove(self) -> None:
        for role in self.roles:
            if self.database.value("SELECT to_regrole(%s)", (role,)):
                self.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.fixture
def people(database: Database) -> Iterator[People]:
    database.execute("CREATE EXTENSION pg_inbox")
    people = People(database)
    yield people
    people.remove()


# -------------------------------------------------------------------------------------------------
# The list
# -------------------------------------------------------------------------------------------------

ALLOWED = """
    WITH object(name, kind, id) AS (
        SELECT 'schema ' || nspname, 'schema', oid FROM pg_namespace
         WHERE nspname IN ('outbox', 'inbox', 'outbox_internal', 'inbox_internal')
        UNION ALL
        SELECT 'wrapper ' || fdwname, 'wrapper', oid FROM pg_foreign_data_wrapper
        UNION ALL
        SELECT 'function ' || replace(oid::regprocedure::text, '"json"', 'json'), 'function', oid FROM pg_proc
         WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'
        UNION ALL
        SELECT CASE relkind WHEN 'r' THEN 'table ' WHEN 'p' THEN 'table ' WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence '
                            WHEN 'c' THEN 'type ' ELSE relkind::text || ' ' END || oid::regclass,
               CASE relkind WHEN 'S' THEN 'sequence' WHEN 'c' THEN 'type' ELSE 'table' END,
               CASE relkind WHEN 'c' THEN reltype ELSE oid END
          FROM pg_class
         WHERE relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND relkind NOT IN ('i', 'I', 't')
        UNION ALL
        SELECT 'type ' || oid::regtype, 'type', oid FROM pg_type
         WHERE typnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND typrelid = 0 AND typelem = 0
    ), allowed AS (
        SELECT o.name, p.privilege
          FROM object AS o,
               LATERAL (SELECT privilege, CASE o.kind
                           WHEN 'schema' THEN has_schema_privilege(%(role)s, o.id, privilege)
                           WHEN 'wrapper' THEN has_foreign_data_wrapper_privilege(%(role)s, o.id, privilege)
                           WHEN 'function' THEN has_function_privilege(%(role)s, o.id, privilege)
                           WHEN 'table' THEN has_any_column_privilege(%(role)s, o.id, privilege)
                           WHEN 'sequence' THEN has_sequence_privilege(%(role)s, o.id, privilege)
                           WHEN 'type' THEN has_type_privilege(%(role)s, o.id, privilege) END AS has
                          FROM unnest(CASE o.kind
                           WHEN 'schema' THEN '{USAGE, CREATE}'
                           WHEN 'function' THEN '{EXECUTE}'
                           WHEN 'table' THEN '{SELECT, INSERT, UPDATE, REFERENCES}'
                           WHEN 'sequence' THEN '{SELECT, USAGE, UPDATE}'
                           ELSE '{USAGE}' END::text[]) AS privilege) AS p
         WHERE p.has
        UNION ALL
        SELECT o.name, privilege
          FROM object AS o, unnest('{DELETE, TRUNCATE, TRIGGER}'::text[]) AS privilege
         WHERE o.kind = 'table' AND has_table_privilege(%(role)s, o.id, privilege)
    )
    SELECT o.name, coalesce(array_agg(a.privilege) FILTER (WHERE a.privilege IS NOT NULL), '{}')
      FROM object AS o LEFT JOIN allowed AS a USING (name)
     GROUP BY o.name
"""


def test_every_object_is_granted_as_listed(people: People) -> None:
    found: dict[str, list[str]] = {}
    for kind in GRANTS:
        role = people.with_right(kind)
        for name, privileges in people.database.execute(ALLOWED, {"role": role}):  # type: ignore[arg-type]
            users = found.setdefault(name, [])
            assert set(privileges) - WRITES.get((kind, name), set()) <= {"EXECUTE", "SELECT", "USAGE"}, (
                f"{kind} may {privileges} {name}"
            )
            if privileges:
                users.append(kind)
    users_of = {name: ", ".join(users) for name, users in found.items()}
    assert {name: users for name, users in users_of.items() if "_internal." not in name.partition("(")[0]} == USERS
    internals = {
        name.partition(" ")[2].partition("(")[0]: users
        for name, users in users_of.items()
        if "_internal." in name.partition("(")[0] and users
    }
    assert internals == {name: users for name, (users, _) in USERS_OF_INTERNALS.items()}


def test_a_reader_may_call_what_its_processor_calls() -> None:
    calls = set(re.findall(r"\binbox_internal\.\w+(?=\()", (REPOSITORY / "bgworker/processor_main.cpp").read_text()))
    assert len(calls) >= 6
    assert {name for name in calls if "reader" not in USERS_OF_INTERNALS.get(name, ("",))[0]} == set()


def test_nothing_internal_is_for_everybody(people: People) -> None:
    """These schemas are for our own code: no function, type, view or table in them is granted to PUBLIC."""
    nobody = people.add("nobody")
    privileges = people.database.execute(ALLOWED, {"role": nobody})  # type: ignore[arg-type]
    assert len([name for name, _ in privileges if "_internal." in name.partition("(")[0]]) > 150
    assert [(name, has) for name, has in privileges if has and "_internal" in name.partition("(")[0]] == []


def test_the_public_schemas_have_no_function_that_only_our_own_code_calls(people: People) -> None:
    """Each function of the API is for a right, is named by objects of users, or is for owners only."""
    for_owners = {
        "adopt", "claim_identity", "create_outbox_view", "insert_event", "refuse_change", "find_event", "find_events",
        *(f"{verb}_{right}" for verb in ("grant", "revoke") for right in
          ("produce", "capture", "fetch", "operate", "monitor", "relay", "send", "read", "consume")),
    }  # fmt: skip
    nobodys = {
        name.partition(".")[2].partition("(")[0]
        for name, users in USERS.items()
        if name.startswith("function ") and users == NOBODY
    }
    assert nobodys <= for_owners


def test_nothing_is_granted_on_columns(people: People) -> None:
    columns = people.database.execute(
        "SELECT attrelid::regclass::text, attname FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid "
        "WHERE c.relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND attacl IS NOT NULL"
    )
    assert columns == []


def test_members_of_pg_monitor_are_monitors(people: People) -> None:
    granted = people.with_right("monitor")
    people.database.execute("SELECT inbox.grant_monitor(%s)", (granted,))
    member = people.add("member")
    people.database.execute(f"GRANT pg_monitor TO {member}")
    rights = [
        sorted(people.database.execute(ALLOWED, {"role": role}))  # type: ignore[arg-type]
        for role in (granted, member)
    ]
    assert rights[0] == rights[1]


# Functions without a fixed search_path, with the reason.
SEARCH_PATH_OF_THE_CALLER = {
    # run with the rights of the caller; the planner puts them into its statement
    "outbox.enqueue(text,anycompatiblenonarray,text,jsonb,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "outbox.enqueue(character varying,anycompatiblenonarray,text,json,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "outbox.enqueue(text,anycompatiblenonarray,text,bytea,text,bigint,text,text,jsonb,integer,uuid,uuid,timestamp with time zone)",
    "inbox.begin_event(text,uuid,text,inbox_internal.caller)",  # called for every event, and qualifies every name and operator
    "inbox_internal.row_parts(regclass,text[],text,jsonb,boolean)",  # the same
    "inbox_internal.run(text,jsonb,regclass,text[],text)",  # the same
    "inbox_internal.process(integer,bigint,text[])",  # handlers are to find what the path of their role has
}


def test_every_function_has_a_fixed_search_path(people: People) -> None:
    functions = people.database.execute(
        """SELECT p.oid::regprocedure::text, prosecdef,
                  coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false),
                  l.lanname = 'c' OR p.prosqlbody IS NOT NULL
             FROM pg_proc AS p JOIN pg_language AS l ON l.oid = p.prolang
            WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"""
    )
    loose = {
        name
        for name, with_more_rights, pinned, resolved in functions
        if not pinned and (with_more_rights or not resolved)
    }
    assert loose == SEARCH_PATH_OF_THE_CALLER


def test_no_function_means_something_else_where_backslashes_escape(people: People) -> None:
    """A body is read when it is called, as the settings of the caller say, unless the function has its own."""
    functions = people.database.execute(
        """SELECT oid::regprocedure::text, prosrc FROM pg_proc
            WHERE pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$' AND prosqlbody IS NULL
              AND NOT coalesce('standard_conforming_strings=on' = ANY (proconfig), false)"""
    )
    comments_and_escapes = re.compile(r"--.*|\bE'(?:[^'\\]|\\.|'')*'")
    assert [name for name, body in functions if "\\" in comments_and_escapes.sub("", body)] == []


# -------------------------------------------------------------------------------------------------
# Granting
# -------------------------------------------------------------------------------------------------


@contextmanager
def refused(message: str = "permission denied") -> Iterator[None]:
    with pytest.raises(errors.InsufficientPrivilege, match=message):
        yield


@pytest.mark.parametrize("kind", [kind for kind, function in GRANTS.items() if function])
def test_what_was_granted_can_be_revoked(people: People, kind: str) -> None:
    role = people.with_right(kind)
    people.database.execute(f"SELECT {(GRANTS[kind] or '').replace('grant', 'revoke')}(%s)", (role,))
    people.database.execute(f"DROP ROLE {role}")  # fails if something depends on it
    assert people.database.execute("SELECT * FROM outbox.producer") == []


def test_rights_are_revoked_one_by_one(people: People) -> None:
    role = people.with_right("producer")
    people.database.execute("SELECT outbox.grant_monitor(%s)", (role,))
    people.database.execute("SELECT outbox.revoke_produce(%s)", (role,))
    with people.connect(role) as connection:
        assert connection.execute("SELECT outbox.metrics()").fetchone()
        with refused("permission denied for function enqueue"):
            enqueue(connection, "video.events")


def test_only_roles_that_may_grant_can_grant(people: People) -> None:
    names = [
        name
        for (name,) in people.database.execute(
            "SELECT oid::regproc::text FROM pg_proc WHERE proname ~ '^(grant|revoke)_' "
            "AND pronamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"
        )
    ]
    for kind in GRANTS:
        role = people.with_right(kind)
        with people.connect(role) as connection:
            for name in names:
                right = ", 'monitor'" if name.endswith("_right") else ""
                with refused():
                    connection.execute(f"SELECT {name}('{role}'{right})")


def test_granting_can_be_delegated(people: People) -> None:
    deputy, producer = people.with_right("monitor"), people.add("producer")
    people.database.execute(f"GRANT EXECUTE ON FUNCTION outbox.grant_produce TO {deputy}")
    with people.connect(deputy) as connection:
        connection.execute("SELECT outbox.grant_produce(%s, 'video.*')", (producer,))
        with refused():
            connection.execute("SELECT outbox.revoke_produce(%s)", (producer,))
    assert people.database.execute("SELECT role::text, topics, granted_by FROM outbox.producer") == [
        (producer, "video.*", deputy)
    ]
    with people.connect(producer) as connection:
        enqueue(connection, "video.events")


@pytest.mark.parametrize(
    "arguments, error",
    [
        (("nobody_of_that_name",), errors.UndefinedObject),
        (("1",), errors.UndefinedObject),
        (("-",), errors.UndefinedObject),
        ((None,), errors.Error),
        (("postgres", "a,,b"), errors.InvalidParameterValue),
        (("postgres", ""), errors.InvalidParameterValue),
        (("postgres", None), errors.NotNullViolation),
    ],
)
def test_invalid_grants_are_refused(people: People, arguments: tuple[object, ...], error: type[psycopg.Error]) -> None:
    values = ", ".join(["%s"] * len(arguments))
    with pytest.raises(error):
        people.database.execute(f"SELECT outbox.grant_produce({values})", arguments)
    assert people.database.execute("SELECT * FROM outbox.producer") == []


def test_names_of_roles_are_only_names(people: People) -> None:
    name = '"x TO PUBLIC; --$$%s {people.database.name}'
    role = sql.Identifier(name)
    people.database.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
    quoted = people.database.value("SELECT quote_ident(%s)", (name,))
    try:
        people.database.execute("SELECT outbox.grant_produce(%s, 'video.*')", (quoted,))
        people.database.execute(sql.SQL("SET ROLE {}").format(role))
        enqueue(people.database.connection, "video.events")
        with refused("topic"):
            enqueue(people.database.connection, "user.events")
        people.database.execute("RESET ROLE")
        people.database.execute("SELECT outbox.revoke_produce(%s)", (quoted,))
    finally:
        people.database.execute("RESET ROLE")
        people.database.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


# -------------------------------------------------------------------------------------------------
# Producing
# -------------------------------------------------------------------------------------------------


def enqueue(connection: psycopg.Connection, topic: str | None, aggregate_type: str = "video") -> None:
    connection.execute("SELECT outbox.enqueue(%s, '1', 'Changed', '{}', topic => %s)", (aggregate_type, topic))


def may(connection: psycopg.Connection, topic: str | None) -> bool:
    """Returns whether the role of the connection may enqueue events of a topic."""
    try:
        with connection.transaction():
            enqueue(connection, topic)
        return True
    except errors.InsufficientPrivilege as error:
        assert f'permission denied for topic "{topic}"' in str(error)
        return False


def test_a_producer_reads_nothing(people: People) -> None:
    producer = people.with_right("producer")
    people.database.add_destination("d", "http://localhost:9/")
    people.database.execute("CREATE USER MAPPING FOR postgres SERVER d OPTIONS (token 'secret')")
    people.database.execute("CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (password 's3cret-of-me')")
    relations = people.database.execute(
        "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'v') "
        "AND relnamespace::regnamespace::text ~ '^(outbox|inbox)(_internal)?$'"
    )
    assert len(relations) > 15
    with people.connect(producer) as connection:
        enqueue(connection, "video.events")
        for (relation,) in relations:
            with refused():
                connection.execute(f"TABLE {relation}")
        with refused():
            connection.execute("SELECT last_value FROM outbox.event_position")
        with refused():
            connection.execute("SELECT outbox.workers()")
        with refused():
            connection.execute("SELECT outbox_internal.claim_due('d', gen_random_uuid(), now(), 1, 1)")
        with refused():
            connection.execute("TABLE pg_user_mapping")
        options = connection.execute("SELECT srvname, umoptions FROM pg_user_mappings").fetchall()
        assert options == [("d", None), ("d", None)]


def test_a_producer_can_be_limited_to_topics(people: People) -> None:
    producer = people.with_right("producer", "video.*, user.created")
    with people.connect(producer) as connection:
        assert may(connection, "video.events")
        assert may(connection, "user.created")
        assert not may(connection, "user.events")
        assert not may(connection, "Video.events")
        enqueue(connection, None, "video")  # the topic is made from the type
        with pytest.raises(errors.InsufficientPrivilege) as caught:
            enqueue(connection, None, "order")
        diagnostic = caught.value.diag
        assert diagnostic.message_primary == 'permission denied for topic "order.events"'
        assert diagnostic.message_detail == (
            f'Role "{producer}" may produce events of the topics "video.*, user.created".'
        )
        assert "grant_produce" in str(diagnostic.message_hint)
    assert people.database.value("SELECT count(*) FROM outbox.event") == 3


def test_every_form_of_enqueue_is_limited(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    calls = [
        "outbox.enqueue('{0}', '1', 'E', '{{}}'::jsonb)",
        "outbox.enqueue('{0}', '1', 'E', '\\x00'::bytea, 'a/b')",
        "outbox.enqueue('{0}', 1, 'E', '{{}}')",
        "outbox.enqueue('{0}', 1, 'E', '{{}}'::json)",
        "outbox.enqueue('{0}', 1, 'E', '\\x00'::bytea, 'a/b')",
        "outbox.enqueue('{0}', '1', 'E', '{{}}'::jsonb, source_event_id => gen_random_uuid())",
        "outbox.enqueue(ARRAY[ROW('video', '1', 'E', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL, NULL), ROW('{0}', '1', 'E', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
        " NULL)]::outbox.new_event[])",
    ]
    with people.connect(producer) as connection:
        for call in calls:
            connection.execute(f"SELECT {call.format('video')}")
            with refused('permission denied for topic "order.events"'):
                connection.execute(f"SELECT {call.format('order')}")
    assert people.database.execute("SELECT DISTINCT topic FROM outbox.event") == [("video.events",)]
    assert people.database.value("SELECT count(*) FROM outbox.source_event") == 1


def test_a_new_grant_replaces_the_old_one(people: People) -> None:
    """Uses a session that has cached the old grant."""
    producer = people.with_right("producer", "video.*")
    grant = "SELECT outbox.grant_produce(%s, %s)"
    with people.connect(producer) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        people.database.execute(grant, (producer, "user.*"))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)
        people.database.execute(grant, (producer, "*"))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, True)
        people.database.execute("UPDATE outbox.producer SET topics = 'video.x'")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        people.database.execute("TRUNCATE outbox.producer")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, False)
        people.database.execute("SELECT outbox.revoke_produce(%s)", (producer,))
        with refused("permission denied for schema outbox"):
            enqueue(connection, "video.x")


def test_a_grant_that_is_rolled_back_has_no_effect(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    with people.database.connect() as owner, people.connect(producer) as connection:
        assert not may(connection, "user.x")
        owner.execute("BEGIN")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        owner.execute("ROLLBACK")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # in the same session, also to a savepoint
        owner.execute("BEGIN")
        owner.execute("SAVEPOINT s")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "user.x")
        owner.execute("ROLLBACK TO s")
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "video.x")
        assert not may(owner, "user.x")
        owner.execute("ROLLBACK")
        owner.execute("BEGIN")
        owner.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        owner.execute(f"SET LOCAL ROLE {producer}")
        enqueue(owner, "user.x")
        owner.execute("ROLLBACK")
        owner.execute(f"SET ROLE {producer}")
        assert not may(owner, "user.x")


def test_a_grant_counts_whatever_the_transaction_can_see(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    with people.connect(producer) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        assert connection.execute("SELECT pg_current_snapshot()").fetchone()
        people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (producer,))
        enqueue(connection, "user.x")
        connection.execute("ROLLBACK")


def test_members_of_a_role_have_its_limits(people: People) -> None:
    group = people.with_right("producer", "video.*")
    member = people.add("member")
    with people.connect(member) as connection:
        with refused("permission denied for schema outbox"):
            enqueue(connection, "video.x")
        people.database.execute(f"GRANT {group} TO {member}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # grants add up, over any number of steps
        other, between = people.add("other"), people.add("between")
        people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (other,))
        people.database.execute(f"GRANT {other} TO {between}; GRANT {between} TO {member}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, True)
        assert not may(connection, "order.x")
        people.database.execute(f"REVOKE {other} FROM {between}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)

        # also with one that has no limit, and with the owner
        people.database.execute("SELECT outbox.grant_produce(%s)", (between,))
        assert may(connection, "order.x")
        people.database.execute(f"REVOKE {between} FROM {member}")
        assert not may(connection, "order.x")
        people.database.execute(f"ALTER ROLE {member} SUPERUSER")
        assert may(connection, "order.x")
        people.database.execute(f"ALTER ROLE {member} NOSUPERUSER")
        assert not may(connection, "order.x")


def test_the_owner_has_no_limit(people: People) -> None:
    """A superuser is not limited, although it has the rights of limited roles too."""
    people.with_right("producer", "video.*")
    assert may(people.database.connection, "user.x")
    deputy = people.with_right("monitor")
    people.database.execute("SELECT outbox.grant_produce(%s, 'video.*')", (deputy,))
    with people.connect(deputy) as connection:
        assert not may(connection, "user.x")
        people.database.execute(f"ALTER TABLE outbox.producer OWNER TO {deputy}")
        assert may(connection, "user.x")
    people.database.execute("ALTER TABLE outbox.producer OWNER TO postgres")


def test_execute_alone_is_not_enough(people: People) -> None:
    role = people.add("plain")
    people.database.execute(
        f"GRANT USAGE ON SCHEMA outbox, outbox_internal TO {role}; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal TO {role}"
    )
    with people.connect(role) as connection:
        assert not may(connection, "order.x")


def test_the_role_that_is_set_counts(people: People) -> None:
    video = people.with_right("producer", "video.*")
    login = people.add("login", "NOINHERIT")
    people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (login,))
    people.database.execute(f"GRANT {video} TO {login}")
    with people.connect(login) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)
        connection.execute(f"SET ROLE {video}")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
        connection.execute("RESET ROLE")
        assert (may(connection, "video.x"), may(connection, "user.x")) == (False, True)


def test_a_security_definer_function_has_the_limits_of_its_owner(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    caller = people.with_right("monitor")
    people.database.execute("SELECT outbox.grant_produce(%s, 'user.*')", (caller,))
    people.database.execute("CREATE SCHEMA app")
    for name, rights in (("as_owner", "SECURITY DEFINER"), ("as_caller", "SECURITY INVOKER")):
        people.database.execute(
            f"CREATE FUNCTION app.{name}(topic text) RETURNS uuid LANGUAGE sql {rights} "
            "SET search_path = pg_catalog, pg_temp "
            "AS $$ SELECT outbox.enqueue('a', '1', 'E', '{}'::jsonb, topic => $1) $$;"
            f"ALTER FUNCTION app.{name} OWNER TO {producer}"
        )
    people.database.execute(f"GRANT USAGE ON SCHEMA app TO {caller}")
    with people.connect(caller) as connection:
        connection.execute("SELECT app.as_owner('video.x')")
        connection.execute("SELECT app.as_caller('user.x')")
        with refused(f'topic "user.x"(.|\n)*"{producer}"'):
            connection.execute("SELECT app.as_owner('user.x')")
        with refused(f'topic "video.x"(.|\n)*"{caller}"'):
            connection.execute("SELECT app.as_caller('video.x')")
        assert may(connection, "user.x")
    people.database.execute("DROP SCHEMA app CASCADE")


def test_a_renamed_role_keeps_its_limits(people: People) -> None:
    producer = people.with_right("producer", "video.*")
    renamed = f"renamed_{people.database.name}"
    people.database.execute(f"ALTER ROLE {producer} RENAME TO {renamed}")
    people.roles.append(renamed)
    with people.connect(renamed) as connection:
        assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)


def program(cluster: Cluster, name: str, *arguments: str, data: str | None = None) -> str:
    command = [str(cluster.installation.bin_directory / name), "-h", str(cluster.directory),
               "-p", str(cluster.port), "-U", "postgres", *arguments]  # fmt: skip
    return subprocess.run(command, check=True, capture_output=True, text=True, input=data).stdout


def test_limits_go_with_a_dump_by_the_name_of_the_role(
    people: People, new_database: NewDatabase, shared_cluster: Cluster
) -> None:
    producer = people.with_right("producer", "video.*")
    gone = people.add("gone")
    people.database.execute("INSERT INTO outbox.producer (role, topics) VALUES (%s, '*')", (gone,))
    people.database.execute(f"DROP ROLE {gone}")
    dump = program(shared_cluster, "pg_dump", people.database.name)

    # The role is another one by now, as in another cluster.
    people.database.execute(f"DROP OWNED BY {producer}; DROP ROLE {producer}; CREATE ROLE {producer} LOGIN")
    copy = new_database(extension=False)
    program(shared_cluster, "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", copy.name, data=dump)
    try:
        assert copy.execute("SELECT role::text, topics FROM outbox.producer") == [(producer, "video.*")]
        with shared_cluster.connect(copy.name, producer) as connection:
            assert (may(connection, "video.x"), may(connection, "user.x")) == (True, False)
    finally:
        copy.execute(f"DROP OWNED BY {producer}")


# -------------------------------------------------------------------------------------------------
# Destinations
# -------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", GRANTS)
def test_no_right_lets_the_server_connect_anywhere(people: People, kind: str) -> None:
    role = people.with_right(kind)
    people.database.add_destination("d", "null:", topics="nothing")
    with people.connect(role) as connection:
        for statement in (
            "CREATE SERVER e FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:')",
            "ALTER SERVER d OPTIONS (SET url 'http://localhost/')",
            "ALTER SERVER d OPTIONS (SET topics '*')",
            "DROP SERVER d",
            "CREATE USER MAPPING FOR PUBLIC SERVER d OPTIONS (user 'me')",
            "CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'me')",
            "CREATE FOREIGN DATA WRAPPER mine VALIDATOR outbox_internal.validate_options",
            "ALTER FOREIGN DATA WRAPPER pg_outbox NO VALIDATOR",
            "ALTER SYSTEM SET outbox.default_destination = 'http://localhost/'",
        ):
            with refused("permission denied|must be owner"):
                connection.execute(statement)
        with pytest.raises(errors.CantChangeRuntimeParam):
            connection.execute("SET outbox.default_destination = 'http://localhost/'")


def test_roles_with_usage_on_the_wrapper_own_only_their_destinations(people: People) -> None:
    first, second = people.with_right("operator"), people.with_right("monitor")
    people.database.execute(f"GRANT USAGE ON FOREIGN DATA WRAPPER pg_outbox TO {first}, {second}")
    with people.connect(first) as mine, people.connect(second) as other:
        mine.execute("CREATE SERVER d FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', topics 'nothing')")
        mine.execute("CREATE USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (user 'me', password 's3cret-of-me')")
        mine.execute("ALTER SERVER d OPTIONS (SET topics 'anything')")
        read = "SELECT umoptions FROM pg_user_mappings"
        assert mine.execute(read).fetchall() == [(["user=me", "password=s3cret-of-me"],)]
        assert other.execute(read).fetchall() == [(None,)]
        for statement in (
            "ALTER SERVER d OPTIONS (SET topics '*')",
            "DROP SERVER d CASCADE",
            f"DROP USER MAPPING FOR {first} SERVER d",
            f"ALTER USER MAPPING FOR {first} SERVER d OPTIONS (SET user 'other')",
        ):
            with refused("must be owner|permission denied"):
                other.execute(statement)
        # The server's keys prove the identity of the server, not of the destination's owner.
        for option in ("sslcert", "sslkey"):
            with refused(f'permission denied to set option "{option}"'):
                mine.execute(f"ALTER USER MAPPING FOR CURRENT_USER SERVER d OPTIONS (ADD {option} 'server.key')")
    people.database.execute(f"ALTER USER MAPPING FOR {first} SERVER d OPTIONS (ADD sslkey 'server.key')")


# -------------------------------------------------------------------------------------------------
# Monitoring
# -------------------------------------------------------------------------------------------------


def test_a_monitor_sees_no_event(people: People, receiver: Receiver, http: None) -> None:
    monitor = people.with_right("monitor")
    receiver.on(everything, answer(503, body=b"come back later"))
    people.database.add_destination("d", receiver.url())
    people.database.execute(
        "SELECT outbox.enqueue('kind-of-secret', 'id-of-secret', 'secret', '{\"a\": \"secret\"}', "
        "topic => 'topic.of.secret', ordering_key => 'key-of-secret', headers => '{\"h\": \"secret\"}')"
    )
    with people.connect(monitor) as connection:
        wait_until(
            lambda: connection.execute("SELECT last_error FROM outbox.status").fetchone(),
            lambda row: row == ("HTTP 503: come back later",), what="the error of the destination",
        )  # fmt: skip
        for query in (
            "SELECT array_agg(s::text)::text FROM outbox.status AS s",
            "SELECT array_agg(s::text)::text FROM outbox.segment AS s",
            "SELECT array_agg(s::text)::text FROM outbox.workers() AS s",
            "SELECT h::text FROM outbox.health() AS h",
            "SELECT outbox.metrics()",
        ):
            row: Any = connection.execute(query).fetchone()
            assert row[0] and "secret" not in row[0]
        for statement in ("TABLE outbox.event", "TABLE outbox.delivery", "TABLE outbox.cursor"):
            with refused():
                connection.execute(statement)
        with refused("permission denied for function enqueue"):
            enqueue(connection, "video.x")


def test_an_error_of_an_inbox_does_not_quote_the_event(people: People, new_database: NewDatabase) -> None:
    """Details of an error would: "Failing row contains ..."."""
    reader = new_database(extension=False)
    reader.execute("CREATE EXTENSION pg_inbox; ALTER TABLE inbox.message ADD CONSTRAINT c CHECK (version > 0)")
    people.database.add_destination("d", reader.inbox_url())
    people.database.execute("SELECT outbox.enqueue('a', '1', 'E', '\"secret\"', 0, ordering_key => 'secret')")
    error = wait_until(
        lambda: people.database.value(
            "SELECT coalesce((SELECT last_error FROM outbox.status),"
            "                (SELECT max(last_error) FROM outbox.delivery))"
        ),
        what="the error",
    )
    assert 'violates check constraint "c"' in error
    assert "secret" not in error
    people.database.execute("DROP SERVER d")


# -------------------------------------------------------------------------------------------------
# The inbox
# -------------------------------------------------------------------------------------------------

RECEIVE = """
    SELECT inbox.receive(%s, 'test', ARRAY[gen_random_uuid()], ARRAY[now()], ARRAY[1], ARRAY[1], ARRAY[1],
                         ARRAY[NULL::uuid], ARRAY['t'], ARRAY['a'], ARRAY['1'], ARRAY['E'], ARRAY['secret'],
                         ARRAY['application/json'], ARRAY[NULL::jsonb], ARRAY['{}'::bytea])
"""


def end_processors(database: Database) -> None:
    """Ends processors before their roles lose their rights."""
    database.execute("SELECT inbox.unsubscribe(name, '*', 'refuse') FROM inbox.consumer")
    wait_until(
        lambda: [worker for worker in database.workers() if worker.kind == "processor"],
        lambda seen: not seen, what="the processors to end",
    )  # fmt: skip


def test_a_sender_sends_and_nothing_else(people: People) -> None:
    sender = people.with_right("sender")
    with people.connect(sender) as connection:
        assert connection.execute(RECEIVE, ("c",)).fetchone() == (1,)
        for statement in (
            "TABLE inbox.message",
            "TABLE inbox.status",
            "SELECT inbox_internal.consumer_id('new')",
            "SELECT inbox_internal.take(1, 1, '{}')",
            "SELECT inbox.subscribe('c', '*', 'now')",
        ):
            with refused():
                connection.execute(statement)


def test_a_reader_cannot_choose_the_role_of_handlers(people: People) -> None:
    """Even with EXECUTE on everything, the role subscribes for itself and reads its own messages."""
    reader, other = people.with_right("reader"), people.with_right("sender")
    for role in (reader, other):
        people.database.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA inbox, inbox_internal TO {role}")
    people.database.execute(
        "CREATE FUNCTION refuse(event inbox.message) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'as %', current_user; END $$"
    )
    people.database.execute("SELECT inbox.subscribe('ours', '*', 'refuse')")
    consumers = "SELECT id, name, role FROM inbox.consumer ORDER BY name"
    with people.connect(reader) as connection:
        connection.execute("SELECT inbox.subscribe('mine', '*', 'refuse')")
        connection.execute(RECEIVE, ("mine",))
        ids = {name: id for id, name, _ in people.database.execute(consumers)}
        with pytest.raises(errors.CheckViolation, match="inbox_internal.caller"):
            connection.execute("SELECT inbox_internal.add_subscription('new', '*', 'refuse', 'postgres')")
        for function in ("inbox_internal.count_subscriptions({ours})", "inbox_internal.own_consumer('ours', '{reader}')",
                         "inbox_internal.consumer_id('new')", "inbox_internal.take({ours}, 1, '{{}}')",
                         "inbox_internal.next_messages({ours}, 1)", "inbox_internal.process({ours}, 1, '{{}}')",
                         "inbox_internal.record_failure({ours}, 1, 'x', 'x', 'x', 'x', 'x')",
                         "inbox_internal.record_end({ours}, 1, NULL)",
                         "inbox_internal.save_progress({ours}, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL)",
                         "inbox.unsubscribe('ours', '*', 'refuse')"):  # fmt: skip
            with refused("permission denied|not one of role|belongs to role"):
                connection.execute(f"SELECT {function.format(reader=reader, **ids)}")
        assert people.database.execute(consumers) == [
            (ids["mine"], "mine", reader),
            (ids["ours"], "ours", "postgres"),
        ]
        seen = wait_until(
            lambda: connection.execute("SELECT consumer, ordering_key, error FROM inbox.waiting_keys").fetchall(),
            what="the failure of the handler",
        )  # fmt: skip
        assert seen == [("mine", "secret", f"as {reader}")]
    people.database.execute("SELECT inbox.grant_read(%s)", (other,))
    with people.connect(other) as connection:
        assert connection.execute("TABLE inbox.waiting_keys").fetchall() == []
    end_processors(people.database)


def test_a_monitor_of_the_inbox_sees_no_message(people: People) -> None:
    monitor = people.with_right("inbox monitor")
    people.database.execute(
        "CREATE FUNCTION refuse(event inbox.message) RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'not %', event.ordering_key; END $$"
    )
    people.database.execute("SELECT inbox.subscribe('c', '*', 'refuse')")
    people.database.execute(RECEIVE, ("c",))
    error = "SELECT last_error, last_error_at IS NOT NULL FROM inbox.status"
    wait_until(lambda: people.database.execute(error), lambda rows: rows == [("not secret", True)], what="a failure")
    with people.connect(monitor) as connection:
        assert connection.execute(error).fetchall() == [(None, True)]
        with refused():
            connection.execute("TABLE inbox.waiting_keys")
    end_processors(people.database)


FAIL = """
    SELECT inbox.fail_event(%s, 'test', %s, now(), NULL, 1, 1, NULL, 't', 'a', '1', 'E', 'k', 'application/json', NULL, 'secret',
                            'not secret', 'P0001', true)
"""


def test_dead_letters_are_for_the_owner_of_the_consumer_and_operators(people: People) -> None:
    ours, operator, monitor = (people.with_right(kind) for kind in ("consumer", "inbox operator", "inbox monitor"))
    theirs = people.add("other")
    people.database.execute("SELECT inbox.grant_consume(%s)", (theirs,))
    letters = "SELECT consumer, error FROM inbox.dead_letter ORDER BY consumer"
    event = "00000000-0000-7000-8000-000000000001"
    with people.connect(ours) as connection:
        assert connection.execute(FAIL, ("ours", event)).fetchone() == (True,)
        assert connection.execute(letters).fetchall() == [("ours", "not secret")]
        with refused():
            connection.execute("SELECT inbox.redrive('ours')")
    with people.connect(theirs) as connection:
        assert connection.execute(letters).fetchall() == []
        for statement in (FAIL, "SELECT inbox.claim(%s), %s", "SELECT inbox.end_failure(%s, ARRAY[%s]::uuid[])",
                          "SELECT inbox.set_policy(%s, 1), %s"):  # fmt: skip
            with refused("belongs to role"):
                connection.execute(statement, ("ours", event))
        connection.execute("SELECT inbox.set_policy('theirs', 1)")
    with people.connect(operator) as connection:
        assert connection.execute(letters).fetchall() == [("ours", "not secret")]
        for statement in (
            "TABLE inbox.dead_message",
            "SELECT inbox.claim('ours')",
            "SELECT inbox.set_policy('ours', 1)",
        ):
            with refused():
                connection.execute(statement)
        assert connection.execute("SELECT inbox.redrive('ours')").fetchone() == (1,)
        people.database.execute("UPDATE inbox.message SET received_at = now() - interval '1 hour'")
        assert connection.execute(
            "SELECT role, operation FROM inbox.operation WHERE operation = 'redrive'"
        ).fetchall() == [(operator, "redrive")]
    with people.connect(ours) as connection:
        token = connection.execute("SELECT token FROM inbox.claim('ours')").fetchone()
        assert token is not None
        with people.connect(theirs) as other, pytest.raises(psycopg.Error, match="not under lease"):
            other.execute("SELECT inbox.complete(%s, %s)", (*token, event))
        connection.execute("SELECT inbox.fail(%s, %s, 'not secret', permanent => true)", (*token, event))
        with refused():
            connection.execute("SELECT inbox.health()")
    detail = "SELECT what, why LIKE '%secret%' FROM inbox.health()"
    with people.connect(monitor) as connection:
        assert connection.execute(detail).fetchall() == [("dead letters", False)]
        with refused():
            connection.execute(letters)
    people.database.execute("SELECT inbox.grant_monitor(%s)", (ours,))
    with people.connect(ours) as connection:
        assert connection.execute(detail).fetchall() == [("dead letters", True)]
