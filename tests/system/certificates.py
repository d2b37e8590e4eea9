"""Certificates for peers that speak TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Certificates(NamedTuple):
    """Paths of the files."""

    authority: str
    certificate: str
    key: str


def make_certificates(directory: Path) -> Certificates:
    """Makes an authority, and a certificate for 127.0.0.1 that it has signed, with its key."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=directory, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority",
            "-addext", "keyUsage=keyCertSign")  # fmt: skip
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "server.crt", "-extfile", "names")  # fmt: skip
    (directory / "ca.crt").chmod(0o644)
    return Certificates(*(str(directory / name) for name in ("ca.crt", "server.crt", "server.key")))
