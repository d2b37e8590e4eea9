"""The mqtt sink, read back with paho. Destinations are told apart by the first level of their topics."""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Any

from database import Database

from .fault_proxy import MqttProxy
from .mqtt_server import MAX_PACKET, MqttServer
from .sink import STRUCTURED, Message, Sink, message_of, message_of_cloud_event, message_of_document, numbers

OF_THE_EVENT = {"event_id", "event_type", "aggregate_type", "aggregate_id", "version",
                "schema_version", "occurred_at", "ordering_key"}  # fmt: skip


class Reader:
    """Subscribes, and keeps what comes in the order in which it comes."""

    def __init__(self, port: int, topics: str, **properties: Any) -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        self.came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._subscribed = threading.Event()
        self._topics = topics
        self.client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=f"reader-{next(numbers)}", protocol=paho.MQTTv5
        )
        self.client.reconnect_delay_set(1, 1)
        self.client.on_connect = lambda client, *_: client.subscribe(topics, qos=2)
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = lambda _, __, message: self.came.put(message)
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self.client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self.client.loop_start()
        self.wait()

    def wait(self) -> None:
        assert self._subscribed.wait(timeout=20), "the broker does not let us subscribe"

    def again(self) -> None:
        """To be called before the broker goes; wait() then waits until it is back."""
        self._subscribed.clear()

    def messages(self) -> list[Any]:
        return [self.came.get() for _ in range(self.came.qsize())]

    def close(self) -> None:
        self.client.disconnect()
        with suppress(AttributeError):  # its thread, which this ends too, ended just now
            self.client.loop_stop()


class MqttSink(Sink):
    name = "mqtt"
    module = "pg_outbox_mqtt"
    server = "mqtt_server"
    cannot = {
        "requests": "the proxy does not read the messages",
        "parallel": "one connection, on which messages go one after the other",
        "batches": "each event is a message",
        "partial": "test_mqtt.py has a broker that refuses some",
        "topics": "a topic need not exist",
        "throttling": "mosquitto refuses nothing for its rate; tests/unit/sinks/mqtt has a broker that does",
        "secrets": "test_mqtt.py has logins",
    }
    cloud_events = ("binary", "structured")
    refuses_texts = True
    more_options: dict[str, str] = {}
    proxy: MqttProxy

    def __init__(self, database: Database, server: MqttServer) -> None:
        super().__init__(database)
        self.broker = server
        self.proxy = MqttProxy(server.port)
        self.reader = Reader(server.port, f"{self.place}/#")

    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.proxy.port}"

    def options(self) -> dict[str, str]:
        return {"topic": f"{self.place}/{{topic}}", "connect_timeout": "5s", **self.more_options}

    def receive(self) -> list[Message]:
        return [message_of_mqtt(message) for message in self.reader.messages()]

    def close(self) -> None:
        super().close()
        self.reader.close()

    def size_limit(self) -> int:
        return MAX_PACKET


class MqttQos2Sink(MqttSink):
    name = "mqtt_qos2"
    more_options = {"qos": "2"}


class MochiSink(MqttSink):
    name = "mqtt_mochi"
    server = "mochi_server"


class MochiQos2Sink(MqttQos2Sink):
    name = "mqtt_mochi_qos2"
    server = "mochi_server"


def properties_of(message: Any) -> dict[str, str]:
    properties = getattr(message.properties, "UserProperty", [])
    assert len(dict(properties)) == len(properties), f"a property twice: {properties}"
    return dict(properties)


def message_of_mqtt(message: Any) -> Message:
    properties = properties_of(message)
    content_type = getattr(message.properties, "ContentType", None)
    payload = message.payload or None
    if content_type and content_type.startswith(STRUCTURED):
        return message_of_document(message.payload)
    if "specversion" in properties:
        return message_of_cloud_event(properties, content_type, payload)
    if content_type is not None:
        properties["content_type"] = content_type
    key = properties.get("ordering_key", "")
    others = {n: v for n, v in properties.items() if n not in OF_THE_EVENT and n != "content_type"}
    return message_of(properties, ordering_key=key, headers=others, payload=payload)
