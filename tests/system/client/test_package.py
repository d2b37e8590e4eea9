"""The installed library: found by CMake and by pkg-config, with its headers and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster import Installation, run

PROGRAM = """
#include <cstdio>
#include <inbox/consumer.hpp>
#include <inbox/install.hpp>
#include <inbox/sources/pull.hpp>
#include <inbox/sources/scripted.hpp>

int main() {
    auto script = std::make_shared<inbox::Script>();
    inbox::Consumer consumer({.name = "c"}, std::make_unique<inbox::ScriptedSource>(script),
                             [] { return PQconnectdb("host=/nonexistent"); },
                             [](inbox::Transaction& t, const inbox::Event& e) {
                                 t.apply("video", {"video_id"}, "version", *e.payload);
                             });
    consumer.stop();
    consumer.run();
    inbox::PullSource pull("host=/nonexistent", "d");
    std::puts(pull.describe().c_str());
}
"""
# Header and class.
COMPONENTS = {
    "kafka": ("sources/kafka.hpp", "inbox::KafkaSource"),
    "nats": ("sources/nats.hpp", "inbox::NatsSource"),
    "pubsub": ("sources/pubsub.hpp", "inbox::PubSubSource"),
    "rabbitmq": ("sources/rabbitmq.hpp", "inbox::RabbitmqSource"),
    "redis": ("sources/redis.hpp", "inbox::RedisSource"),
    "sqs": ("sources/sqs.hpp", "inbox::SqsSource"),
    "otlp": ("otlp.hpp", "inbox::OtlpExporter"),
}


def prefix(installation: Installation) -> Path:
    (config,) = installation.stage.rglob("pg_inboxConfig.cmake")
    return config.parents[3]


def test_pkg_config(installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(PROGRAM)
    (description,) = prefix(installation).rglob("pg_inbox.pc")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "pg_inbox"], check=True, capture_output=True, text=True,
        env={**os.environ, "PKG_CONFIG_PATH": str(description.parent)},
    ).stdout.split()  # fmt: skip
    program = tmp_path / "main"
    run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", str(tmp_path / "main.cpp"), *flags, "-o", str(program)])
    assert run([str(program)]) == "pull:d\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("component", ["inbox", *COMPONENTS])
def test_find_package(installation: Installation, tmp_path: Path, component: str) -> None:
    if component in COMPONENTS and not list(prefix(installation).rglob(f"pg_inbox-{component}.cmake")):
        pytest.skip(f"NOT TESTED: the component {component} is not part of this build")
    program = PROGRAM
    if component in COMPONENTS:
        header, of = COMPONENTS[component]
        program = f"#include <inbox/{header}>\n" + program.replace(
            "std::puts(", f'std::printf("%zu ", sizeof({of})); std::puts('
        )
    (tmp_path / "main.cpp").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(example CXX)\n"
        f"find_package(pg_inbox 0.2 REQUIRED COMPONENTS {component})\n"
        "add_executable(main main.cpp)\n"
        f"target_link_libraries(main PRIVATE pg_inbox::{component} pg_inbox::inbox)\n"
    )
    run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_PREFIX_PATH={prefix(installation)}"])
    run(["cmake", "--build", str(tmp_path / "b")])
    assert run([str(tmp_path / "b/main")]).endswith("pull:d\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("component", "package"),
    [
        ("kafka", "librdkafka-dev"),
        ("pubsub", "libgrpc++-dev"),
        ("sqs", "libcurl4-openssl-dev"),
        ("otlp", "libcurl4-openssl-dev"),
        ("kafak", "Components are inbox, kafka"),
    ],
)
def test_find_package_names_a_missing_component_and_what_to_install(
    installation: Installation, tmp_path: Path, component: str, package: str
) -> None:
    lacking = tmp_path / "prefix"
    shutil.copytree(prefix(installation), lacking)
    for part in lacking.rglob(f"pg_inbox-{component}*.cmake"):
        part.unlink()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(example CXX)\n"
        f"find_package(pg_inbox 0.2 REQUIRED COMPONENTS inbox {component})\n"
    )
    refused = subprocess.run(
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b"), f"-DCMAKE_PREFIX_PATH={lacking}"],
        capture_output=True,
        text=True,
    )
    words = " ".join(refused.stderr.split())
    assert refused.returncode != 0
    assert f"lacks the component {component}." in words and package in words, words


@pytest.mark.long
def test_every_public_header_stands_alone(installation: Installation, tmp_path: Path) -> None:
    headers = sorted((prefix(installation) / "include/inbox").rglob("*.hpp"))
    assert len(headers) >= 9
    libpq = run(["pkg-config", "--cflags", "libpq"]).split()
    for header in headers:
        name = header.relative_to(prefix(installation) / "include")
        (tmp_path / "one.cpp").write_text(f"#include <{name}>\n")
        run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
             "-I", str(prefix(installation) / "include"), *libpq, str(tmp_path / "one.cpp")])  # fmt: skip
