"""Copies of the head's documents on other hosts: what is collected, who gets it, and when."""

from __future__ import annotations

import subprocess
from pathlib import Path

from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import GatewayAccess, Host, Inventory
from clusterctl.node.files import NodePaths
from clusterctl.transport.base import CommandResult
from clusterctl.transport.head_copy import COLLECT, copy_file, hand_out, read_copy, read_serial
from clusterctl.transport.lock import ClusterLock
from tests.fakes.transport import Call, FakeTransport

KEYS = str(NodePaths("demo").keys)


def head_with(directory: Path) -> FakeTransport:
    """A host that runs the script for real, in this directory."""

    def collect(call: Call) -> CommandResult:
        words = ["sh", "-c", COLLECT, "x", str(directory)]
        ran = subprocess.run(words, capture_output=True, text=True, check=False)
        return CommandResult(call.argv, ran.returncode, ran.stdout, ran.stderr)

    head = FakeTransport()
    head.on(lambda argv: "clusterctl-copy" in argv, answer=collect)
    return head


def keeper(name: str) -> FakeTransport:
    return FakeTransport(host=Host(name=name, address="10.0.0.2"))


def test_each_change_has_a_number_and_all_documents(tmp_path: Path) -> None:
    (tmp_path / "members").mkdir()
    (tmp_path / "members/tiny.json").write_text('{"port": 8000}\n')
    (tmp_path / "keys.json").write_text('{"keys": ["Zoë"]}')
    first, second = keeper("gpu2"), keeper("gpu3")
    second.down = ConnectionFailed("no route", host="gpu3")

    hand_out(head_with(tmp_path), "demo", [first, second])
    data, mode, sudo = first.files[copy_file("demo")]
    copy = read_copy(data)
    assert copy
    assert (copy.head, copy.serial, mode, sudo) == ("gpu1", 1, 0o600, True)
    assert copy.documents == {
        "keys.json": '{"keys": ["Zoë"]}', "members/tiny.json": '{"port": 8000}\n',
    }  # fmt: skip
    assert copy.written > 1e9

    hand_out(head_with(tmp_path), "demo", [first])
    again = read_copy(first.files[copy_file("demo")][0])
    assert again
    assert again.serial == 2
    assert read_serial((tmp_path / "serial").read_bytes()) == 2


def test_a_damaged_number_and_no_documents_are_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "serial").write_text("x\n")
    first = keeper("gpu2")
    hand_out(head_with(tmp_path), "demo", [first])
    copy = read_copy(first.files[copy_file("demo")][0])
    assert copy
    assert (copy.serial, copy.documents) == (1, {})

    hand_out(head_with(tmp_path / "missing"), "demo", [other := keeper("gpu3")])
    assert other.files == {}
    assert read_copy(b"{") is None


def test_keys_are_copied_too_and_only_a_change_is_handed_out(tmp_path: Path) -> None:
    """Without a copy on the head, `bootstrap` would restore a key that was revoked since."""
    head, other = head_with(tmp_path), keeper("gpu2")
    head.on(lambda argv: "clusterctl-write" in argv)
    inventory = Inventory(
        cluster="demo",
        image="vllm:1",
        hosts=(
            Host(name="gpu1", address="10.0.0.1", role="head"),
            Host(name="gpu2", address="10.0.0.2"),
        ),
    )
    known = {"gpu1": head, "gpu2": other}
    ClusterLock.of(inventory, known, "key", name="demo-keys").close()
    assert other.files == {}

    lock = ClusterLock.of(inventory, known, "key", name="demo-keys")
    lock.replace(KEYS, b"{}", before=None)
    write = next(call for call in head.calls if "clusterctl-write" in call.argv)
    assert "/var/lib/clusterctl/declared/demo/keys.json" in write.argv
    assert "/run/clusterctl/demo-keys.lock" in write.argv
    lock.close()
    assert copy_file("demo") in other.files


def test_hosts_with_a_gateway_keep_them_first() -> None:
    hosts = [Host(name=f"gpu{n}", address=f"10.0.0.{n}") for n in range(2, 9)]
    head = Host(name="gpu1", address="10.0.0.1", role="head")
    inventory = Inventory(
        cluster="demo",
        image="vllm:1",
        gateway=GatewayAccess(hosts=("gpu7",)),
        hosts=(head, *hosts),
    )
    assert [host.name for host in inventory.keepers] == ["gpu7", "gpu2", "gpu3"]
