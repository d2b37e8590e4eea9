"""Only root may change installed files. Services that come with them are not root and keep their secrets."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from cluster import REPOSITORY, Installation

DEBIAN = REPOSITORY / "packaging/debian"
EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def installed(installation: Installation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `cmake --install` leaves it; the installation of other tests has been made readable by chmod."""
    root = tmp_path_factory.mktemp("installed")
    subprocess.run(
        ["cmake", "--install", installation.build],
        env={**os.environ, "DESTDIR": str(root)}, check=True, stdout=subprocess.DEVNULL, umask=0o022,
    )  # fmt: skip
    return root


def test_installed_files_are_changed_by_their_owner_only(installed: Path) -> None:
    paths = list(installed.rglob("*"))
    assert len(paths) > 50
    for path in paths:
        mode = path.lstat().st_mode
        if path.is_symlink():
            assert not Path(os.readlink(path)).is_absolute(), path
            continue
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH | stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX), (path, oct(mode))
        assert mode & stat.S_IROTH, f"{path} cannot be read by the server"
        if path.is_dir() or path.parent.name == "bin":
            assert mode & stat.S_IXOTH, path


def test_installed_programs_find_libraries_in_no_directory_of_others(installed: Path) -> None:
    """A path of the build directory would be one that another user may create later."""
    binaries = [path for path in installed.rglob("*") if path.suffix == ".so" or path.parent.name == "bin"]
    assert len(binaries) > 5
    for path in binaries:
        text = subprocess.run(["objdump", "-p", path], capture_output=True, text=True).stdout
        assert re.findall(r"^\s+(?:RPATH|RUNPATH)\s+(.*)", text, re.MULTILINE) == [], path


def test_packages_run_nothing_when_they_are_installed() -> None:
    scripts = re.compile(
        r"(^|\.)(preinst|postinst|prerm|postrm|config|triggers|conffiles|service|init|cron\..*|tmpfiles)$"
    )
    assert [path.name for path in DEBIAN.rglob("*") if scripts.search(path.name)] == []
    assert "Rules-Requires-Root: no" in (DEBIAN / "control.in").read_text()
    rules = (DEBIAN / "rules").read_text()
    assert not re.search(r"chmod|chown|setcap|fixperms|install -[mog]", rules)


def test_the_service_is_not_root_and_has_its_secrets_for_itself() -> None:
    unit = (EXAMPLES / "systemd/outbox-relay.service").read_text()
    for line in (
        "DynamicUser=yes",
        "NoNewPrivileges=yes",
        "CapabilityBoundingSet=",
        "ProtectSystem=strict",
        "UMask=0077",
    ):
        assert re.search(f"^{line}$", unit, re.MULTILINE), line
    assert re.search(r"^LoadCredential=", unit, re.MULTILINE)
    assert not re.search(r"^(User=root|Environment=.*(PASSWORD|SECRET|TOKEN))", unit, re.MULTILINE)


def test_containers_are_not_root() -> None:
    for file in EXAMPLES.rglob("Containerfile"):
        user = re.findall(r"^USER (\S+)", file.read_text(), re.MULTILINE)
        assert user and user[-1].split(":")[0].isdigit() and not user[-1].startswith("0"), file
    for name in ("deployment", "check-job"):
        text = (EXAMPLES / f"kubernetes/{name}.yaml").read_text()
        for line in ("runAsNonRoot: true", "allowPrivilegeEscalation: false", "readOnlyRootFilesystem: true"):
            assert line in text, (name, line)
        assert re.search(r"drop: \[ *\"?ALL\"? *\]|drop:\s*- ALL", text), name


def test_examples_name_secrets_and_have_none() -> None:
    """Values are variables, files or obvious gaps."""
    value = re.compile(
        r"""^\s*(?:password|token|secret|signing_secret|client_secret)[ \t]*[=:][ \t]*["']?([^"'{<$\s#][^"'\s]*)""",
        re.MULTILINE,
    )
    found = {
        (str(path.relative_to(REPOSITORY)), match)
        for path in EXAMPLES.rglob("*")
        if path.suffix in (".toml", ".yaml", ".service")
        for match in value.findall(path.read_text())
    }  # fmt: skip
    assert found == set()
