"""Every problem of a file is named at its place, in words a user knows, all at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterctl.errors import InventoryError
from clusterctl.inventory.model import Inventory
from tests.unit.inventory.conftest import HOST, Problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("imag: b", "1: unknown key `imag`; did you mean image?"),
        ("source: b", "1: unknown key `source`"),
        ("zzz: 1", "1: unknown key `zzz`; known keys: cluster, image, "),
        (
            "ssh: {password: x}",
            "7: `ssh.password` does not belong in a file: set CLUSTERCTL_SSH_",
        ),
        ("ssh: {sudo_password: x}", "7: `ssh.sudo_password` does not belong in a file: set CLUST"),
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


def test_one_problem_and_several_are_counted(loaded: Callable[[str], Inventory]) -> None:
    with pytest.raises(InventoryError, match=r"inventory\.yaml has a problem$"):
        loaded(HOST + "x: 1")
    with pytest.raises(InventoryError, match=r"inventory\.yaml has 2 problems$"):
        loaded(HOST + "x: 1\ny: 2")
