"""Faults of engines, images and containers, put into real hosts one by one: `check` names each
by host, cause and fix within 30 s. Images here are a shell and a `python3` that tells releases:
what is compared is layers and what an image says, and vLLM's takes minutes to copy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from clusterctl.lab import lifecycle
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import quiet
from tests.lab.conftest import OnHost
from tests.lab.faulty import Bench, bench

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(400, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

HOSTS = ("gpu1", "gpu2")

INSTALL = (
    "apt-get update -qq && DEBIAN_FRONTEND=noninteractive "
    "apt-get install -qq --no-install-recommends docker.io docker-cli python3 >/dev/null && "
    "docker info >/dev/null"
)

# "$1" tag, "$2" what its python3 says.
MAKE_IMAGE = """\
set -e
root=$(mktemp -d)
mkdir -p "$root/bin"
for file in /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*'); do
  mkdir -p "$root${file%/*}"
  cp -L "$file" "$root$file"
done
printf "#!/bin/sh\\necho '%s'\\n" "$2" >"$root/bin/python3"
chmod +x "$root/bin/python3"
tar -C "$root" -c . | docker import -c 'ENV PATH=/bin' - "$1" >/dev/null
rm -r "$root"
"""


@pytest.fixture(scope="module", autouse=True)
def equipped(
    lab: LabPaths, on_host: OnHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Two hosts with an engine, and an inventory whose image no host has."""
    lifecycle.down(say=quiet)
    made = lifecycle.up(2, image=False, say=quiet)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: on_host(name, INSTALL, timeout=600), HOSTS):
            assert done.returncode == 0, done.stderr
    document = yaml.safe_load(made.inventory.read_text())
    document["image"] = "faulty:1"
    file = tmp_path_factory.mktemp("equipped") / "inventory.yaml"
    file.write_text(yaml.safe_dump(document))
    yield file
    lifecycle.down(say=quiet)


@pytest.fixture
def lab_bench(equipped: Path, on_host: OnHost, tmp_path: Path) -> Iterator[Bench]:
    with bench(equipped, on_host, tmp_path) as made:
        yield made


def give_image(to: Bench, host: str, ray: str, vllm: str = "0.32.0") -> None:
    told = f'{{"ray": "{ray}", "vllm": "{vllm}"}}'
    words = shlex.join(["sh", "-c", MAKE_IMAGE, "image", "faulty:1", told])
    to.break_host(host, words, "docker rmi -f faulty:1 >/dev/null")


def test_engines_as_they_should_be_are_no_problem(lab_bench: Bench) -> None:
    assert lab_bench.check().status == 0


def test_an_engine_that_hangs(lab_bench: Bench) -> None:
    daemon = "$(cat /run/docker.pid)"
    lab_bench.break_host("gpu2", f"kill -STOP {daemon}", f"kill -CONT {daemon}")
    lab_bench.told("gpu2", "its Docker daemon does not answer", "systemctl restart docker")


def test_different_images_under_one_tag(lab_bench: Bench, on_host: OnHost) -> None:
    """Both say the same of themselves; their layers tell them apart."""
    for name in HOSTS:
        give_image(lab_bench, name, ray="2.60.0")
    on_host("gpu2", "docker rmi -f faulty:1; echo other >/tmp/other; tar -C /tmp -c other | "
            "docker import - faulty:1")  # fmt: skip
    lab_bench.told(
        "gpu2", "has a different image than gpu1 under the name faulty:1", "docker rmi -f"
    )


def test_different_releases_of_ray(lab_bench: Bench) -> None:
    give_image(lab_bench, "gpu1", ray="2.60.0")
    give_image(lab_bench, "gpu2", ray="2.59.1")
    lab_bench.told(
        "gpu2", "under the name faulty:1: Ray 2.59.1 here, 2.60.0 on gpu1", "clusterctl bootstrap"
    )


def test_a_leftover_container_of_another_tool_under_our_name(lab_bench: Bench) -> None:
    give_image(lab_bench, "gpu2", ray="2.60.0")
    lab_bench.break_host(
        "gpu2", "docker create --name clusterctl-lab faulty:1 sh", "docker rm clusterctl-lab"
    )
    lab_bench.told(
        "gpu2",
        "a container named clusterctl-lab already exists, and is not clusterctl's",
        "docker rename clusterctl-lab clusterctl-lab-old",
    )


def test_an_engine_with_few_open_files(lab_bench: Bench) -> None:
    """The engine's limit counts, not that of the session."""
    lab_bench.break_host(
        "gpu2",
        "prlimit --pid $(cat /run/docker.pid) --nofile=1024:1024",
        "systemctl restart docker",
    )
    lab_bench.told("gpu2", "at most 1024 open files are allowed", "LimitNOFILE=1048576")
