"""Keys and tokens of NATS, as `nsc` makes them: NKeys, and JWTs of an operator, an account and a user."""

from __future__ import annotations

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

PREFIXES = {"operator": 14, "account": 0, "user": 20}
SEED = 18


def crc16(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def encoded(data: bytes) -> str:
    return base64.b32encode(data + crc16(data).to_bytes(2, "little")).decode().rstrip("=")


class Key:
    def __init__(self, kind: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        raw = self._key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        prefix = PREFIXES[kind] << 3
        self.seed = encoded(bytes([SEED << 3 | prefix >> 5, (prefix & 31) << 3]) + raw)
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = encoded(bytes([prefix]) + public)

    def jwt(self, subject: Key, name: str, nats: dict[str, Any]) -> str:
        """Returns a token about another key, signed by this one."""
        claims = {"jti": name, "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": name,
                  "nats": {**nats, "version": 2}}  # fmt: skip
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        text = ".".join(in_url(json.dumps(part).encode()) for part in parts)
        return f"{text}.{in_url(self._key.sign(text.encode()))}"

    def signature(self, nonce: str) -> bytes:
        return base64.b64encode(self._key.sign(nonce.encode()))


def in_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Operator:
    """An operator with one account, which has JetStream, and a user."""

    def __init__(self) -> None:
        operator, system, account, user = Key("operator"), Key("account"), Key("account"), Key("user")
        unlimited = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
                     "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1,
                     "consumer": -1}  # fmt: skip
        own = operator.jwt(operator, "operator", {"type": "operator", "system_account": system.public})
        of_system = operator.jwt(system, "system", {"type": "account", "limits": {**unlimited, "mem_storage": 0,
                                                                                  "disk_storage": 0}})  # fmt: skip
        of_account = operator.jwt(account, "account", {"type": "account", "limits": unlimited})
        of_user = account.jwt(user, "user", {"type": "user", "subs": -1, "data": -1, "payload": -1})
        self.configuration = (
            f"operator: {own}\nresolver: MEMORY\nsystem_account: {system.public}\n"
            f"resolver_preload: {{ {system.public}: {of_system}, {account.public}: {of_account} }}\n"
        )
        self.credentials = (
            f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n"
            f"************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        self.user = user
        self.user_jwt = of_user
