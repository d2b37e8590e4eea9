"""The code blocks of README.md and docs/: which are run, what they need, and why the others are not.

Every block of `sql` or `sh` is run by test_docs.py or by the test that RUN_BY names, or is in NOT_RUN with its first
line and the reason. Blocks of other languages are not commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cluster import REPOSITORY


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        text = path.read_text()
        for match in re.finditer(r"^( *)```(sql|sh)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
            lines = (line.removeprefix(match[1]) for line in match[3].splitlines(keepends=True))
            yield Block(
                str(path.relative_to(REPOSITORY)),
                text.count("\n", 0, match.start()) + 2,
                match[2],
                "".join(lines),
            )


# Pages whose blocks are run as somebody types them, in one shell and one psql.
TYPED = ("README.md", "docs/tutorial.md")

NEEDS_ROOT = "installs packages and builds; scripts/demo.sh does the same"
REDIS = "run by sinks/test_redis.py: test_a_user_of_an_access_list"
KAFKA = "a program of Kafka, for the reader's cluster"
RABBITMQ = "a program of RabbitMQ, for the reader's server"
GOOGLE = "a program of Google, for the reader's project"
OUTBOXCTL = "for the reader's host; test_outboxctl.py runs the commands"
EDITION = "run by test_edition.py and test_migrate_edition.py"
# Pages of which another test runs every block, in their order.
RUN_BY = {
    "docs/cold-start.md": "client/test_cold_start.py",
    "docs/howto/applications.md": "test_applications.py",
    "docs/operations/citus.md": "tests/citus/test_docs.py",
    "docs/rebuild.md": "client/test_rebuild.py",
}
NOT_RUN: dict[str, dict[str, str]] = {
    "README.md": {
        "scripts/demo.sh     # installs packages, builds, starts a private server, and shows a shop's events become "
        "a catalog's read model": NEEDS_ROOT,
        "sudo apt-get update": NEEDS_ROOT,
    },
    "docs/capture.md": {
        "data := inbox.json(event) || jsonb_build_object('version', event.version);": "a line of a function",
    },
    "docs/client/kafka.md": {
        "kafka-acls.sh --bootstrap-server broker1:9092 --add --allow-principal User:catalog --consumer "
        "--topic video.events --group catalog": KAFKA,
        "kafka-consumer-groups.sh --bootstrap-server broker1:9092 --group catalog --topic video.events "
        "--reset-offsets --to-datetime 2026-01-31T00:00:00.000 --execute": KAFKA,
        "kafka-consumer-groups.sh --bootstrap-server broker1:9092 --group catalog --describe": KAFKA,
    },
    "docs/operations.md": {
        "echo orders-production | sudo tee /etc/postgresql-common/outbox-identity": NEEDS_ROOT,
        "ALTER SUBSCRIPTION upgrade DISABLE;": "needs two servers: run by test_copies.py",
    },
    "docs/client/pubsub.md": {
        "gcloud pubsub subscriptions create catalog --topic video.events --project shop "
        "--enable-message-ordering \\": GOOGLE,
    },
    "docs/console.md": {
        "openssl rand -hex 32 > /etc/outboxctl/token && chmod 600 /etc/outboxctl/token": "run by test_console.py",
    },
    "docs/destinations/http.md": {
        'echo "whsec_$(openssl rand -base64 32)"       # give it to the receiver, too': "run by test_webhooks.py",
        "openssl genpkey -algorithm ed25519 -out key.pem": "run by test_webhooks.py",
    },
    "docs/client/nats.md": {
        "nats consumer add ORDERS catalog --pull --ack explicit --wait 30s --deliver all --max-deliver -1 "
        "--defaults": "a program of NATS, for the reader's cluster",
    },
    "docs/client/rabbitmq.md": {
        "rabbitmqadmin declare queue name=video.events durable=true "
        """arguments='{"x-queue-type": "quorum", "x-single-active-consumer": true}'""": RABBITMQ,
    },
    "docs/destinations/nats.md": {
        "nats stream add ORDERS --subjects 'order.events.>' --storage file --replicas 3 --dupe-window 10m "
        "--defaults": "a program of NATS, for the reader's cluster",
    },
    "docs/destinations/kafka.md": {
        "kafka-topics.sh --bootstrap-server broker1:9092 --create --topic order.events --partitions 12 "
        "--replication-factor 3": KAFKA,
        "kafka-acls.sh --bootstrap-server broker1:9092 --add --allow-principal User:outbox --operation Write "
        "--operation Describe --transactional-id pg_outbox. --resource-pattern-type prefixed": KAFKA,
    },
    "docs/destinations/pubsub.md": {
        "gcloud iam service-accounts create outbox --project my-project": GOOGLE,
    },
    "docs/destinations/rabbitmq.md": {
        "rabbitmqctl add_user outbox s3cret": RABBITMQ,
    },
    "docs/client/redis.md": {
        "redis-cli XGROUP CREATE order.events catalog 0 MKSTREAM": "done with redis-py by client/test_redis.py",
    },
    "docs/destinations/redis.md": {
        "redis-cli ACL SETUSER outbox on '>s3cret' '~order.*' '~video.*' +multi +exec +xadd +xinfo\\|stream +xrevrange": REDIS,
    },
    "docs/editions.md": {
        "psql -d 'host=db.example.com dbname=shop user=shop_owner' -f pg_outbox--sql.sql    # one transaction": EDITION,
        "CREATE ROLE outbox_relay LOGIN PASSWORD '…';": EDITION,
        "outboxctl migrate-edition --to native --check -d shop      # says what it would do, or everything that is "
        "in the way": EDITION,
    },
    "docs/enqueue.md": {
        "SELECT outbox.enqueue(aggregate_type, aggregate_id, event_type, payload, …);": "the form of a call",
    },
    "docs/from-debezium.md": {
        "SELECT pg_drop_replication_slot('debezium');": "run by sinks/test_from_debezium.py",
    },
    "docs/installing.md": {
        "packaging/deb.sh": "packaging/test.sh makes and installs the packages",
        "make && sudo make install                              # PG_CONFIG=/usr/lib/postgresql/17/bin/pg_config for a "
        "certain server": "packaging/pgxn.sh runs it",
        'sudo -u postgres psql -c "SHOW shared_preload_libraries"          # keep what is there': "as in README.md",
    },
    "docs/monitoring.md": {
        "outboxctl serve --all -d 'host=db.example.com user=prometheus dbname=postgres'": OUTBOXCTL,
    },
    "docs/outbox-relay.md": {
        "outbox-relay --config relay.toml --check": "for the reader's host; run by test_outbox_relay_config.py",
        "kubectl apply -f examples/kubernetes/config-map.yaml -f examples/kubernetes/secret.yaml": (
            "for the reader's cluster; test_relay_examples.py checks the manifests"
        ),
    },
    "docs/outboxctl.md": {
        "export PGHOST=db.example.com PGUSER=oncall PGDATABASE=shop": OUTBOXCTL,
        "outboxctl -c production health": OUTBOXCTL,
        "outboxctl serve --all -d 'host=db.example.com user=prometheus dbname=postgres'": OUTBOXCTL,
        "outboxctl inbox install -d 'host=db.example.com dbname=catalog user=catalog_owner'": OUTBOXCTL,
    },
    "docs/performance.md": {
        "bench/run.sh                     # all figures, some hours": "hours, on a machine that does nothing else",
    },
}

# Objects that the blocks of a page need in the database.
VIDEO = """
CREATE TABLE video (video_id text PRIMARY KEY, id text GENERATED ALWAYS AS (video_id) STORED, title text,
                    version bigint NOT NULL DEFAULT 1);
INSERT INTO video VALUES ('v1', DEFAULT, 'Cats');
"""


def roles(*names: str) -> str:
    return "".join(f"CREATE ROLE {name} LOGIN;" for name in names)


def destinations(*names: str) -> str:
    return "".join(f"CREATE SERVER {name} FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:');" for name in names)


APP_OUTBOX = """
CREATE TABLE app_outbox (
  id uuid PRIMARY KEY, aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text NOT NULL,
  version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1, payload bytea NOT NULL,
  occurred_at timestamptz NOT NULL DEFAULT now(), published_at timestamptz,
  publish_attempts int NOT NULL DEFAULT 0, next_retry_at timestamptz, lock_token text, locked_at timestamptz);
"""
INBOX = f"""{VIDEO}
SELECT inbox.create_consumer(name) FROM unnest(ARRAY['bilin', 'old_catalog', 'worker', 'service']) AS name;
SELECT inbox.receive('worker', 'shop', ids, array_fill(now(), size), ARRAY[1, 2], ARRAY[1, 2], ARRAY[1, 1],
                     array_fill(NULL::uuid, size), array_fill('video.events'::text, size),
                     array_fill('video'::text, size), ARRAY['v1', 'v2'], array_fill('VideoUpdated'::text, size),
                     ARRAY['v1', 'v2'], array_fill('application/json'::text, size), array_fill(NULL::jsonb, size),
                     array_fill('{{}}'::bytea, size))
  FROM (SELECT ARRAY[gen_random_uuid(), gen_random_uuid()] AS ids, ARRAY[2] AS size) AS two;
"""
SET_UP: dict[str, str] = {
    "docs/backfill.md": f"CREATE SCHEMA catalog; SET search_path = catalog; {VIDEO} {destinations('search')}"
    "INSERT INTO video SELECT n FROM generate_series(1, 10000) AS n; SELECT outbox.capture('catalog.video');",
    "docs/capture.md": VIDEO + roles("shop_owner") + 'CREATE SCHEMA t1 CREATE TABLE "order" (id bigint PRIMARY KEY);',
    "docs/client.md": roles("relay"),
    "docs/delivery.md": destinations("billing"),
    "docs/destinations.md": destinations("billing", "bus", "search"),
    "docs/destinations/pull.md": roles("relay"),
    "docs/enqueue.md": VIDEO,
    "docs/existing-outbox.md": APP_OUTBOX,
    "docs/inbox.md": INBOX,
    "docs/monitoring.md": "CREATE EXTENSION pg_inbox;",
    "docs/operations.md": destinations("catalog"),
    "docs/security.md": "CREATE EXTENSION pg_inbox;"
    + destinations("bus")
    + roles("app", "catalog", "shop_owner", "oncall", "grafana", "relay", "outbox_relay", "integrator")
    + roles("outbox_of_shop", "catalog_service"),
    "docs/troubleshooting.md": "CREATE EXTENSION pg_inbox;",
    "docs/tracing.md": "CREATE TABLE account (id int, balance int);",
}

# Patterns, and what a reader writes there.
SOME_EVENT = "(SELECT min(event_id::text)::uuid FROM claimed)"
OTHER_EVENT = "(SELECT max(event_id::text)::uuid FROM claimed)"
EVERYWHERE = [
    # Pages show several servers of one name.
    (r"CREATE SERVER (\w+)", r"DROP SERVER IF EXISTS \1 CASCADE; CREATE SERVER \1"),
    (r"(?m)^…", "-- …"),
    (r"'01\w\w…'", "gen_random_uuid()"),
    (r"'…'::text", "'…'"),
]
SUBSTITUTES: dict[str, list[tuple[str, str]]] = {
    # It is not to be finished before it is paused.
    "docs/backfill.md": [
        (r"rate => 20000", "rate => 1"),
        (r"\(42\)", "((SELECT max(id) FROM outbox.backfill_progress))"),
    ],
    "docs/delivery.md": [
        (r"cancel_replay\(17\)", "cancel_replay((SELECT max(id) FROM outbox.replay_progress))"),
    ],
    "docs/destinations.md": [
        (r"(?=SELECT \* FROM outbox.check_destination\('billing)", destinations("billing") + "\n"),
    ],
    "docs/destinations/endpoints.md": [(r"whsec_\w*…", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
    "docs/destinations/http.md": [(r"whsec_\w*…", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
    "docs/destinations/pubsub.md": [(r"`cat outbox-key.json`", "'{}'")],
    "docs/enqueue.md": [(r"\$1", "'[]'")],
    "docs/inbox.md": [
        (r"ARRAY\['…'\]", "ARRAY[gen_random_uuid()]"),
        (r"SELECT \* FROM inbox.claim\('catalog'", "CREATE TABLE claimed AS SELECT * FROM inbox.claim('worker'"),
        (r"complete\(:token, :event_id", f"complete((SELECT token FROM claimed LIMIT 1), {SOME_EVENT}"),
        (
            r"fail\(:token, :event_id, :error, :sqlstate",
            f"fail((SELECT token FROM claimed LIMIT 1), {OTHER_EVENT}, 'no such video', 'P0002'",
        ),
        (r"begin_event\('catalog', :event_id, :source", "begin_event('service', gen_random_uuid(), 'shop'"),
        (
            r"save_offset\('catalog', 'videos', :message_id, :publish_time",
            "save_offset('service', 'videos', 'm1', now()",
        ),
        (r":event_id, timeout => '2 seconds'", "gen_random_uuid(), timeout => '0.1 seconds'"),
        (r"7, timeout => '2 seconds'", "7, timeout => '0.1 seconds'"),
    ],
}
IN_CATALOG: tuple[str, ...] = ("docs/inbox.md",)
