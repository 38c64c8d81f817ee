"""Models on bare hosts, as a user brings them there: pushed, broken off and pushed again, got by a
host from a hub, listed. No engine is needed for any of it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.fakes.hubs import FakeHubs, running_hubs
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("bare"),
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

MIB = 1 << 20
HUB_ADDRESS = "10.77.0.1"
"""This machine's, on the lab's control network."""

MODELS = "/data/models"


@pytest.fixture
def operator(tmp_path: Path, bare: Path, monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CLUSTERCTL_INVENTORY", str(bare))
    return Operator(tmp_path / "state")


def safetensors(data: bytes) -> bytes:
    size = len(data)
    tensor = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"w": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + data


def make_model(directory: Path, megabytes: int) -> dict[str, str]:
    """A model there; sha256 by file name."""
    directory.mkdir(parents=True)
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "model.safetensors": safetensors(os.urandom(MIB) * megabytes),
    }
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_a_model_comes_to_all_hosts_and_is_listed(
    operator: Operator, tmp_path: Path, on_host: OnHost
) -> None:
    sums = make_model(tmp_path / "Lab-1B", 100)
    size = sum(path.stat().st_size for path in (tmp_path / "Lab-1B").iterdir())
    done = operator.ok("model", "push", str(tmp_path / "Lab-1B"), "--json").json
    assert (done["changed"], done["sent"]) == (2, size)
    for host in ("gpu1", "gpu2"):
        told = on_host(host, f"cd {MODELS}/Lab-1B && sha256sum *").stdout
        assert {line.split()[1]: line.split()[0] for line in told.splitlines()} == sums
    again = operator.ok("model", "push", str(tmp_path / "Lab-1B"))
    assert "nothing to transfer: Lab-1B is already on 2 hosts" in again.stdout
    listed = operator.ok("model", "ls", "--json").json["models"]
    (mine,) = (each for each in listed if each["name"] == "Lab-1B")
    assert mine["hosts"] == {"gpu1": "complete", "gpu2": "complete"}
    on_host("gpu2", f"rm {MODELS}/Lab-1B/config.json")
    assert "complete on gpu1; partial on gpu2" in operator.ok("model", "ls").stdout
    mended = operator.ok("model", "push", "Lab-1B", "--from", "host:gpu1", "--json").json
    assert (mended["changed"], mended["sent"]) == (1, 0)


def test_a_push_that_was_killed_goes_on_where_it_stopped(
    operator: Operator, tmp_path: Path, on_host: OnHost
) -> None:
    make_model(tmp_path / "Killed-1B", 128)
    words = ("model", "push", str(tmp_path / "Killed-1B"), "--limit-rate", "6MB", "--json")
    process = operator.start(*words)
    staged = f"{MODELS}/.clusterctl-incoming"

    def arrived() -> int:
        told = on_host("gpu2", f"du -sk {staged} 2>/dev/null | cut -f 1").stdout
        return int(told or 0) * 1024

    # 10 s before its end, which nobody who looks so often misses.
    until(lambda: arrived() > 48 * MIB, within=300, what="48 MiB on gpu2", pause=0.1)
    process.kill()
    process.communicate()
    for host in ("gpu1", "gpu2"):
        assert on_host(host, f"ls {MODELS}/Killed-1B").returncode != 0
    assert "coming on all 2 hosts" in operator.ok("model", "ls").stdout
    done = operator.ok(*words[:3], "--json").json
    assert done["changed"] == 2
    assert done["sent"] < 128 * MIB - 16 * MIB
    assert on_host("gpu1", f"ls -A {staged}").stdout == ""


def test_a_user_of_a_host_sends_no_file_that_is_not_theirs(
    operator: Operator, on_host: OnHost
) -> None:
    """In a directory of theirs, a link to a file of root's stands for the weights."""
    theirs, secret = f"{MODELS}/Theirs-1B", "known to root alone"
    on_host(
        "gpu1",
        f"mkdir {theirs} && cd {theirs} && echo '{{}}' >config.json && umask 077 &&"
        f" echo {secret} >/root/secret && ln -s /root/secret model.safetensors &&"
        f" chown -hR nobody . && chmod 755 . && chmod 644 config.json",
    )
    ran = operator.run("model", "push", "Theirs-1B", "--from", "host:gpu1", "--yes")
    assert ran.status == 6, ran.text
    assert "only through another user's link" in ran.stderr
    assert secret not in ran.text
    assert on_host("gpu2", f"grep -r '{secret}' {MODELS}").stdout == ""
    on_host("gpu1", f"rm -r {theirs} /root/secret")


def test_a_host_gets_a_model_from_a_hub_with_its_own_python(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, on_host: OnHost
) -> None:
    weights = safetensors(os.urandom(MIB) * 5)
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": weights}
    with running_hubs(FakeHubs(models={"Qwen/Qwen3-8B": files}), HUB_ADDRESS) as hubs:
        monkeypatch.setenv("HF_ENDPOINT", hubs.endpoint)
        dry = operator.run("model", "pull", "qwen3-8b", "--on", "gpu2", "--dry-run")
        assert dry.status == 10, dry.text
        done = operator.ok("model", "pull", "qwen3-8b", "--on", "gpu2", "--json").json
        asked = len(hubs.asked)
        again = operator.ok("model", "pull", "qwen3-8b", "--json").json
        assert not [line for line in hubs.asked[asked:] if "/resolve/" in line]
    assert (done["sent"], done["path"]) == (0, f"{MODELS}/Qwen3-8B")
    assert done["origin"].startswith("hf:Qwen/Qwen3-8B@")
    assert (again["changed"], again["sent"]) == (0, 0)
    for host in ("gpu1", "gpu2"):
        told = on_host(host, f"sha256sum {MODELS}/Qwen3-8B/model.safetensors").stdout
        assert told.split()[0] == hashlib.sha256(weights).hexdigest()
