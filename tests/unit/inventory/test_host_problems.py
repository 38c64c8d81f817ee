"""Problems of hosts, and between them: each named at its place in the file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterctl.inventory.model import Inventory
from tests.unit.inventory.conftest import HOST, Problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("role: worker", "11: the only host is the head; remove `role`"),
        ("adress: b", "5: unknown key `hosts.gpu1.adress`; did you mean address?"),
        ("nccl: eth0", "5: unknown key `hosts.gpu1.nccl`; did you mean nics.nccl?"),
        ("name: gpu1", "5: unknown key `name`; the host's name is its key, gpu1"),
        ("role: boss", '11: `hosts.gpu1.role` must be head or worker, not "boss"'),
        ("gpus: two", "11: `hosts.gpu1.gpus` must be a count or a list of GPUs, not two"),
        ("gpus: -1", "11: `hosts.gpu1.gpus` must be 0 to 64 GPUs, not -1"),
        ("gpus: 99999999999", "11: `hosts.gpu1.gpus` must be 0 to 64 GPUs, not 99999999999"),
        (
            "gpus: [{memory: 80}]",
            "21: `hosts.gpu1.gpus[0].memory` 80 is 80 bytes; write the unit, such as 80 GiB",
        ),
        (
            "gpus: [{model: 3090}]",
            '20: `hosts.gpu1.gpus[0].model` must be text, not 3090; put it in quotes: "3090"',
        ),
        (
            'ssh: {port: "22"}',
            '17: `hosts.gpu1.ssh.port` must be a whole number, not "22"; write 22 without quotes',
        ),
        (
            "ssh: {port: 0022}",
            '17: `hosts.gpu1.ssh.port` must be a whole number, not "0022"; '
            "write 22 without quotes",
        ),
        ("ssh: {port: 2e1}", "17: `hosts.gpu1.ssh.port` must be a whole number, not 2e1"),
        ("ssh: {port: 22.0}", "17: `hosts.gpu1.ssh.port` must be a whole number, not 22.0"),
        ("ssh: {port: 70000}", "17: `hosts.gpu1.ssh.port` must be at most 65535, not 70000"),
        ("ssh: {port: true}", "17: `hosts.gpu1.ssh.port` must be a whole number, not true"),
        ("ssh: {port: 0x16, port: 22}", "23: `port` is given twice, first on line 6"),
        (
            "ssh: {accept_new: yes}",
            '23: `hosts.gpu1.ssh.accept_new` must be true or false, not "yes"',
        ),
        (
            "ssh: {connect_timeout: .inf}",
            "28: `hosts.gpu1.ssh.connect_timeout` must be at most 3600, not .inf",
        ),
        (
            "ssh: {connect_timeout: 0}",
            "28: `hosts.gpu1.ssh.connect_timeout` must be more than 0, not 0",
        ),
        (
            "ssh: {identity_file: ~no-such-user/key}",
            "26: `hosts.gpu1.ssh.identity_file`: no user named ~no-such-user",
        ),
        (
            "ssh: {user: -oProxyCommand=x}",
            "17: `hosts.gpu1.ssh.user` must be a user name, without space, colon or a leading "
            'dash; not "-oProxyCommand=x"',
        ),
        ("ssh: root", '10: `hosts.gpu1.ssh` must be a mapping (key: value), not "root"'),
        ("nics: [eth0]", "11: `hosts.gpu1.nics` must be a mapping (key: value), not a list"),
        ("env:", "5: `env` has no value; give it one or remove it"),
        ("gpus: [~]", "12: this item has no value; give it one or remove it"),
        (
            "env: {A: true}",
            '14: `hosts.gpu1.env.A` must be text, not true; put it in quotes: "true"',
        ),
        (
            "env: {GLOO_SOCKET_IFNAME: eth1}",
            "11: `hosts.gpu1.env.GLOO_SOCKET_IFNAME`: GLOO_SOCKET_IFNAME cannot be set here: "
            "use `nics.gloo` of the host",
        ),
        ("labels: {role: a}", "14: `hosts.gpu1.labels.role`: a label cannot be named `role`: "
         "set the host's `role` key instead"),
        (
            "mounts: {/a: /x, /b: /x}",
            "13: `hosts.gpu1.mounts` /a and /b are both mounted at /x",
        ),
        ("node_ip: 10.0.0", "14: `hosts.gpu1.node_ip` 10.0.0 is not an IP address"),
        ("node_ip: 0.0.0.0", "14: `hosts.gpu1.node_ip` 0.0.0.0 is not the address of one host"),
        ("{a: b}: c", "5: a key must be text; a text with `{` needs quotes"),
        ("node_ip: !python/object:os.system x", "14: the tag !python/object:os.system is not "
         "supported"),
        ('node_ip: "a\\0b"', "14: the text contains an invalid character"),
    ],
)  # fmt: skip
def test_a_problem_of_a_host_is_named_at_its_place(
    problems: Problems, line: str, expected: str
) -> None:
    assert problems(HOST + f"    {line}\n")[:1] == [f"6:{expected}"]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("{}", ["3:8: `hosts` must be a mapping of names to hosts: gpu1: {address: ...}"]),
        ("[gpu1]", ["3:8: `hosts` must be a mapping of names to hosts: gpu1: {address: ...}"]),
        ("{a: 10.0.0.1}", ["3:12: `hosts.a` must be a mapping: a: {address: ...}"]),
        ("{a: {}}", ["3:9: `hosts.a.address` is missing"]),
        ("{A: {address: x}}", ["3:9: the host name must be lower case letters, digits and"]),
        (
            "{a: {address: x}, b: {address: y}}",
            ["3:1: no host is the head; add `role: head` to one of them, such as a"],
        ),
        (
            "{a: {address: x, role: head}, b: {address: y, role: head}}",
            ["3:60: b is a second head; a is already the head, on line 3"],
        ),
        (
            "{a: {address: fd00::1, role: head}, b: {address: 'fd00:0::1', ssh: {port: 22}}}",
            ["3:57: b has the same address and port as a, on line 3"],
        ),
        (
            "{a: {address: Gate, role: head}, b: {address: gate.}}",
            ["3:54: b has the same address and port as a, on line 3"],
        ),
        (
            "{a: {address: x, role: head, node_ip: 10.0.0.1}, b: {address: y, node_ip: 10.0.0.1}}",
            ["3:82: b has the same node_ip as a, on line 3"],
        ),
        (
            "{a: {address: x, role: head, node_ip: 127.0.0.1}, b: {address: y}}",
            ["3:46: the other hosts cannot reach 127.0.0.1"],
        ),
        ("{a: {address: 10.0.0.300}}", ["3:22: `hosts.a.address` 10.0.0.300 is not an IP"]),
        ("{a: {address: 'gate:22'}}", ["3:22: `hosts.a.address` gate:22 is not an IP address; "]),
        ("{a: {address: root@gate}}", ["3:22: `hosts.a.address` must be a host name or an IP"]),
        ("{a: {address: -oProxy}}", ["3:22: `hosts.a.address` must be a host name or an IP"]),
        ("{a: {address: x}, a: {address: y}}", ["3:26: `a` is given twice, first on line 3"]),
    ],
)
def test_problems_between_hosts_are_named(
    problems: Problems, hosts: str, expected: list[str]
) -> None:
    found = problems(f"cluster: demo\nimage: a\nhosts: {hosts}\n")
    assert [line[: len(start)] for line, start in zip(found, expected, strict=True)] == expected


def test_a_node_address_outside_the_subnet_is_named(problems: Problems) -> None:
    text = HOST + "    node_ip: 10.1.0.1\nnetwork: {subnet: 10.0.0.0/24}\n"
    assert problems(text) == ["6:14: 10.1.0.1 is outside network.subnet 10.0.0.0/24"]


@pytest.mark.parametrize(
    "jump", ["gate", "me@gate", "me@gate:2222", "[fd00::1]:22", "10.0.0.1", "me@a,you@b:2222"]
)
def test_jump_hosts_are_read(loaded: Callable[[str], Inventory], jump: str) -> None:
    assert loaded(HOST + f"ssh: {{proxy_jump: '{jump}'}}").head.ssh.proxy_jump == jump


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "a b", "a,,b", "me@", "gate:ssh"])
def test_what_is_no_jump_host_is_named(problems: Problems, jump: str) -> None:
    (found,) = problems(HOST + f"ssh: {{proxy_jump: '{jump}'}}")
    assert "must be written as host, user@host or user@host:port" in found
