"""Every problem of a file is named at its place, in words a user knows, all at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.load import LARGEST_FILE, load
from clusterctl.inventory.model import Inventory

Problems = Callable[[str | bytes], list[str]]

HOST = """\
cluster: demo
image: a
hosts:
  gpu1:
    address: 10.0.0.1
"""


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
            "26: `hosts.gpu1.ssh.identity_file`: there is no user ~no-such-user",
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
        ("labels: {role: a}", "14: `hosts.gpu1.labels.role`: a label cannot be named role: "
         "the host's own key `role` says it"),
        (
            "mounts: {/a: /x, /b: /x}",
            "13: `hosts.gpu1.mounts` /a and /b are both mounted at /x",
        ),
        ("node_ip: 10.0.0", "14: `hosts.gpu1.node_ip` 10.0.0 is not an IP address"),
        ("node_ip: 0.0.0.0", "14: `hosts.gpu1.node_ip` 0.0.0.0 is not the address of one host"),
        ("{a: b}: c", "5: a key must be text; `{` needs quotes in text"),
        ("node_ip: !python/object:os.system x", "14: the tag !python/object:os.system is not "
         "understood here"),
        ('node_ip: "a\\0b"', "14: text with a character that no program takes"),
    ],
)  # fmt: skip
def test_a_problem_of_a_host_is_named_at_its_place(
    problems: Problems, line: str, expected: str
) -> None:
    assert problems(HOST + f"    {line}\n")[:1] == [f"6:{expected}"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("imag: b", "1: unknown key `imag`; did you mean image?"),
        ("source: b", "1: unknown key `source`"),
        ("zzz: 1", "1: unknown key `zzz`; known here: cluster, image, "),
        ("accelerator: nvidea", '14: `accelerator` must be nvidia or cpu, not "nvidea"; did you'),
        ("models: data", "9: `models` must be an absolute path: it starts with / and has no co"),
        (
            "network: {subnet: 10.0.0.7/24}",
            "19: `network.subnet` 10.0.0.7/24 is not a network; did you mean 10.0.0.0/24?",
        ),
        ("network: {subnet: eth0}", "19: `network.subnet` eth0 is not a network such as 192"),
        ("network: {subnet: 7}", "19: `network.subnet` must be text such as 192.168.1.0/24, not"),
        ("ray_ports: {gcs: 80}", "18: `ray_ports.gcs` must be at least 1024, not 80"),
        ("ray_ports: {gcs: 6380}", "12: `ray_ports` gcs and node_manager are both 6380"),
        ("ray_ports: {gcs: 11001}", "12: `ray_ports` gcs 11001 lies between min_worker and max"),
        ("packages: {pip_index: 'http://u:p@h/'}", "23: `packages.pip_index` must be an http://"),
        ("env: {RAY_AUTH_TOKEN: x}", "7: `env.RAY_AUTH_TOKEN`: RAY_AUTH_TOKEN cannot be set her"),
        ("env: {HF_TOKEN: x}", "7: `env.HF_TOKEN`: HF_TOKEN cannot be set here: a secret does n"),
        ("env: {1A: x}", "7: `env.1A`: must be a variable name: letters, digits and _, not"),
        ("cluster: b", "1: `cluster` is given twice, first on line 1"),
    ],
)
def test_a_problem_of_the_cluster_is_named_at_its_place(
    problems: Problems, line: str, expected: str
) -> None:
    (found,) = problems(HOST + f"{line}\n")
    assert found.startswith(f"6:{expected}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1:1: the file is empty"]),
        ("# nothing yet\n", ["1:1: the file is empty"]),
        ("- gpu1\n", ["1:1: an inventory is a mapping: cluster, image, hosts"]),
        ("hosts:\n\t- gpu1", ["2:1: a tab; YAML indents with spaces only"]),
        ("a: b: c", ["1:5: no `:` can stand here; text with `: ` needs quotes, or the line"]),
        ("a: 'x\nb: c", ["2:5: the quote opened on line 1 is never closed"]),
        ("a: @x", ["1:4: text that starts with @ needs quotes"]),
        ("a: *.example.org", ["1:5: text that starts with * or & needs quotes"]),
        ("a: !<", ["1:6: text that starts with ! needs quotes"]),
        ("  a: 1\nb: 2", ["2:1: this line is indented less than the first key of the file"]),
        ("a: - b", ["1:4: no `- ` can stand here; a list begins on its own line"]),
        ("a: *x", ["1:4: *x is used, but no &x is above it"]),
        ("a: {b: 1\nc: 2", ["2:2: a missing comma or closing }, opened on line 1"]),
        ("a:\n  b: 1\n c: 2", ["3:2: this line is indented unlike line 1, where its block"]),
        ("a: 1\n---\nb: 2", ["2:1: a second document; one file holds one inventory"]),
        ('a: "\\UFFFFFFFF"', ["1:1: a number or escape that YAML cannot hold"]),
        ("cluster: a\nimage: \x07", ["2:8: a character that YAML does not allow: '\\x07'"]),
        ("[" * 5000, ["1:1: values are nested too deep"]),
        (b"cluster: a\nimage: \xe4\n", ["2:8: not UTF-8 text; save the file as UTF-8"]),
        (b"\xff\xfea\x00", ["1:1: not UTF-8 text; save the file as UTF-8"]),
    ],
)
def test_what_is_not_yaml_is_said_in_plain_words(
    problems: Problems, text: str | bytes, expected: list[str]
) -> None:
    found = problems(text)
    assert len(found) == len(expected)
    assert all(line.startswith(start) for line, start in zip(found, expected, strict=True))


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
            ["3:60: b is a second head; a is head already, on line 3"],
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


def test_a_later_alias_does_not_repeat_a_problem(problems: Problems) -> None:
    text = """
cluster: demo
image: a
x-nics: &nics {nccl: not a nic}
hosts:
  gpu1: {address: a, role: head, nics: *nics}
  gpu2: {address: b, nics: {<<: *nics, gloo: eth0}}
"""
    found = problems(text)
    assert {line.partition(" ")[0] for line in found} == {"4:22:"}


def test_all_problems_come_at_once_in_the_order_of_the_file(problems: Problems) -> None:
    found = problems("""\
imag: a
image: Not An Image
network: {subnet: nowhere}
hosts:
  gpu1: {address: a, gpus: many}
  gpu2: {adress: b, ssh: {port: "22"}}
  gpu1: {address: c}
""")
    places = [tuple(int(n) for n in line.split(":")[:2]) for line in found]
    assert places == sorted(places)
    assert len(places) == 10


@pytest.mark.parametrize(
    ("image", "valid"),
    [
        ("vllm/vllm-openai:v0.33.0", True),
        ("vllm", True),
        ("registry.example.org:5000/team/vllm-openai", True),
        ("localhost/a__b.c-d:X", True),
        ("a@sha256:" + "0" * 64, True),
        ("a:v1@sha256:" + "0" * 64, True),
        ("vLLM/vllm", True),  # Docker reads the part before the slash as a registry
        ("vllm/vLLM", False),
        ("https://registry/vllm", False),
        ("vllm:", False),
        ("vllm latest", False),
        ("vllm@sha256:123", False),
        ("/vllm", False),
        ("-v", False),
        ("vllm:" + "x" * 129, False),
    ],
)
def test_image_names_follow_dockers_grammar(
    loaded: Callable[[str], Inventory], image: str, valid: bool
) -> None:
    text = f"cluster: demo\nimage: '{image}'\nhosts: {{gpu1: {{address: a}}}}\n"
    if valid:
        assert loaded(text).image == image
    else:
        with pytest.raises(InventoryError) as caught:
            loaded(text)
        assert ":2:8: `image` must be an image name such as" in str(caught.value.detail)


@pytest.mark.parametrize("jump", ["gate", "me@gate", "me@gate:2222", "[fd00::1]:22", "10.0.0.1"])
def test_jump_hosts_are_read(loaded: Callable[[str], Inventory], jump: str) -> None:
    assert loaded(HOST + f"ssh: {{proxy_jump: '{jump}'}}").head.ssh.proxy_jump == jump


@pytest.mark.parametrize("jump", ["-oProxyCommand=x", "a b", "a,b", "me@", "gate:ssh"])
def test_what_is_no_jump_host_is_named(problems: Problems, jump: str) -> None:
    (found,) = problems(HOST + f"ssh: {{proxy_jump: '{jump}'}}")
    assert "must be written as host, user@host or user@host:port" in found


def test_a_missing_file_a_directory_and_a_device_are_named(tmp_path: Path) -> None:
    cases = {tmp_path / "no": "No such file", tmp_path: "a directory", Path("/dev/zero"): "not a"}
    for path, words in cases.items():
        with pytest.raises(InventoryError, match=words) as caught:
            load(path)
        assert "clusterctl -i FILE" in str(caught.value.hint)


def test_a_path_with_a_null_byte_is_an_error() -> None:
    with pytest.raises(InventoryError, match="cannot be read"):
        load(Path("a\0b"))


def test_a_huge_file_is_refused(problems: Problems) -> None:
    (found,) = problems("#" * (LARGEST_FILE + 1))
    assert re.search(r"larger than \d+ KiB", found)


def test_nested_aliases_end_early(problems: Problems) -> None:
    text = "a0: &a0 [x,x,x,x,x,x,x,x]\n" + "".join(
        f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 8)}]\n" for i in range(1, 15)
    )
    (found,) = problems(text)
    assert found.endswith("aliases stand for too many values")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {<<: *a}"])
def test_an_alias_to_itself_ends(problems: Problems, text: str) -> None:
    assert any("nested deeper" in line or "back to itself" in line for line in problems(text))


def test_one_problem_and_several_are_counted(loaded: Callable[[str], Inventory]) -> None:
    with pytest.raises(InventoryError, match=r"inventory\.yaml has a problem$"):
        loaded(HOST + "x: 1")
    with pytest.raises(InventoryError, match=r"inventory\.yaml has 2 problems$"):
        loaded(HOST + "x: 1\ny: 2")
