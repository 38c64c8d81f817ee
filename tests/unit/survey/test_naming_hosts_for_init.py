"""Words of the command line become hosts, and what hosts say becomes their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.errors import Problems, UsageError
from clusterctl.facts.model import GpuReport, HostFacts
from clusterctl.inventory.model import Ssh
from clusterctl.survey.inventory_text import choose_head, doubts, inventory_names, named_hosts
from tests.fakes.host_facts import gpus, host_facts

COMMON = Ssh(user="ops", identity_file=Path("/k"))


@pytest.mark.parametrize(
    ("word", "address", "user", "port"),
    [
        ("gpu1", "gpu1", "ops", None),
        ("10.0.0.1", "10.0.0.1", "ops", None),
        ("root@10.0.0.1:2222", "10.0.0.1", "root", 2222),
        ("gpu1.example.org:22", "gpu1.example.org", "ops", 22),
        ("[fd00::1]:2200", "fd00::1", "ops", 2200),
        ("fd00::1", "fd00::1", "ops", None),
        ("user@corp@gpu1", "gpu1", "user@corp", None),
    ],
)
def test_a_word_says_address_user_and_port(
    word: str, address: str, user: str, port: int | None
) -> None:
    (host,) = named_hosts([word], COMMON)
    assert (host.name, host.address, host.ssh.user, host.ssh.port) == (word, address, user, port)
    assert host.ssh.identity_file == Path("/k")


def test_all_words_that_name_no_host_are_told_at_once() -> None:
    with pytest.raises(Problems) as caught:
        named_hosts(["gpu1", "10.0.0.300", "gpu one", "gpu2:99999"], COMMON)
    assert [error.exit_code for error in caught.value.errors] == [2, 2, 2]
    assert "'10.0.0.300' is not a valid host: 10.0.0.300 is not an IP address" in str(
        caught.value.errors[0]
    )


def test_a_host_named_twice_is_told() -> None:
    with pytest.raises(UsageError, match="gpu1 is named twice"):
        named_hosts(["gpu1"] * 2, COMMON)
    with pytest.raises(UsageError, match="gpu1 is named twice"):
        named_hosts(["GPU1", "gpu2", "gpu1"], COMMON)
    assert len(named_hosts(["gpu1", "gpu1:2222"], COMMON)) == 2


def facts(hostname: str, **changes: object) -> HostFacts:
    identity = {"machine_id": hostname, "boot_id": hostname}
    return host_facts(**{"hostname": hostname, **identity, **changes})


def test_hosts_are_called_what_they_call_themselves() -> None:
    found = {
        "10.0.0.1": facts("GPU1.example.org"),
        "10.0.0.2": facts("node_2"),
        "10.0.0.3": facts("localhost"),
        "h": facts(""),
    }
    assert list(inventory_names(found).values()) == ["gpu1", "node-2", "host-10-0-0-3", "host-h"]


def test_equal_names_get_numbers_and_are_told() -> None:
    found = {
        "10.0.0.1": facts("ubuntu"),
        "10.0.0.2": facts("ubuntu", machine_id="2"),
        "10.0.0.3": facts("ubuntu-2"),
    }
    names = inventory_names(found)
    assert list(names.values()) == ["ubuntu", "ubuntu-2", "ubuntu-2-2"]
    words = {name: word for word, name in names.items()}
    said = doubts(words, {names[word]: of_host for word, of_host in found.items()}, counted=False)
    assert said == [
        "10.0.0.2 calls itself ubuntu, as 10.0.0.1 does, so it is ubuntu-2 here; on it: sudo "
        "hostnamectl set-hostname ubuntu-2"
    ]


def test_one_machine_under_two_addresses_is_told() -> None:
    said = doubts(
        {"a": "10.0.0.1", "a-2": "10.1.0.1"}, {"a": facts("a"), "a-2": facts("a")}, counted=False
    )
    assert said == [
        "a-2 (10.1.0.1) seems to be the same machine as a (10.0.0.1): machine ID and boot ID are "
        "equal"
    ]


def test_hosts_without_a_gpu_are_told_where_gpus_count() -> None:
    found = {"a": facts("a", gpus=GpuReport((), "nvidia-smi is not installed", 2))}
    assert doubts({"a": "x"}, found, counted=True) == [
        "a shows no GPU: nvidia-smi is not installed, and its PCI bus shows 2"
    ]
    assert doubts({"a": "x"}, found, counted=False) == []


def test_the_head_is_the_first_host_that_has_gpus() -> None:
    with_gpu, without = facts("a", gpus=gpus(1)), facts("b")
    assert choose_head(["b", "a"], {"b": without, "a": with_gpu}) == (
        "a",
        "the first host named that has GPUs (b has none)",
    )
    assert choose_head(["a", "c"], {"a": with_gpu, "c": with_gpu})[1] == "the first host named"
    assert choose_head(["b"], {"b": without})[0] == "b"
