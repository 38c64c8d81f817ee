"""The published schema says what `load` says, as far as a schema can; the examples are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from clusterctl.errors import InventoryError
from clusterctl.inventory.document import read
from clusterctl.inventory.load import load
from clusterctl.inventory.model import (
    GatewayAccess,
    Gpu,
    Host,
    Inventory,
    Network,
    Nics,
    Packages,
    RayPorts,
    Ssh,
)
from clusterctl.inventory.schema import render, schema
from clusterctl.inventory.unsafe import DANGEROUS
from clusterctl.inventory.values import SET_BY_CLUSTERCTL

EXAMPLES = Path(__file__).parents[3] / "inventory"
VALIDATOR = Draft202012Validator(schema())
ANNOTATED = ["example.yaml", "one-host-8-gpus.yaml", "two-hosts.yaml"]


def test_the_published_schema_is_up_to_date_and_a_schema() -> None:
    assert (EXAMPLES / "schema.json").read_text() == render(), (
        "run: python -m clusterctl.inventory.schema > inventory/schema.json"
    )
    Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize(
    "path",
    sorted(path for path in EXAMPLES.glob("*.yaml") if path.name != "fleet.yaml"),
    ids=lambda path: path.name,
)
def test_an_example_loads_and_is_valid_for_editors(path: Path) -> None:
    load(path)
    VALIDATOR.validate(read(path).data)


@pytest.mark.parametrize("name", ANNOTATED)
def test_an_example_names_its_schema_to_editors(name: str) -> None:
    first = (EXAMPLES / name).read_text().partition("\n")[0]
    assert first == "# yaml-language-server: $schema=schema.json"


@pytest.mark.parametrize(
    "model", [Inventory, Ssh, Network, GatewayAccess, RayPorts, Packages, Host, Nics, Gpu]
)
def test_every_key_appears_in_the_example(model: type[BaseModel]) -> None:
    text = (EXAMPLES / "example.yaml").read_text()
    keys = [name for name, field in model.model_fields.items() if not field.exclude]
    assert [key for key in keys if not re.search(rf"\b{key}:", text)] == []


def test_the_defaults_that_the_example_shows_are_the_defaults() -> None:
    example = load(EXAMPLES / "example.yaml")
    assert example.ray_ports == RayPorts()
    for key in ("models", "accelerator", "allow_unauthenticated_ray"):
        assert getattr(example, key) == Inventory.model_fields[key].default


def test_the_two_host_example_is_the_cluster_of_two_gpu_kinds_and_two_networks() -> None:
    inventory = load(EXAMPLES / "two-hosts.yaml")
    assert [(host.nics.nccl, host.nics.gloo) for host in inventory.hosts] == [("eth0", "eth1")] * 2
    assert [gpu.model for host in inventory.hosts for gpu in host.gpus] == [
        "NVIDIA GeForce RTX 3090",
        "NVIDIA H800",
    ]


HOST: dict[str, Any] = {"address": "10.0.0.1"}
BASE: dict[str, Any] = {"cluster": "a", "image": "a", "hosts": {"gpu1": HOST}}


def with_host(**keys: Any) -> dict[str, Any]:
    return {**BASE, "hosts": {"gpu1": {**HOST, **keys}}}


STRUCTURALLY_WRONG = [
    {},
    {**BASE, "imag": "a"},
    {**BASE, "source": "a"},
    {**BASE, "hosts": {}},
    {**BASE, "hosts": ["gpu1"]},
    {**BASE, "hosts": {"gpu1": {}}},
    {**BASE, "hosts": {"GPU1": HOST}},
    {**BASE, "hosts": {"gpu1": None}},
    {**BASE, "image": "A B"},
    {**BASE, "cluster": "a_b"},
    {**BASE, "models": "data"},
    {**BASE, "accelerator": "amd"},
    {**BASE, "ssh": None},
    {**BASE, "ssh": {"port": "22"}},
    {**BASE, "ssh": {"port": 0}},
    {**BASE, "ssh": {"user": None}},
    {**BASE, "ssh": {"accept_new": "yes"}},
    {**BASE, "ssh": {"connect_timeout": 0}},
    {**BASE, "ssh": {"proxy_jump": "a b"}},
    {**BASE, "ray_ports": {"gcs": 80}},
    {**BASE, "packages": {"pip_index": "http://u:p@h/"}},
    {**BASE, "allow_unauthenticated_ray": "yes"},
    {**BASE, "env": {"A": True}},
    {**BASE, "env": {"A": None}},
    {**BASE, "env": {"1A": "x"}},
    {**BASE, "env": {"RAY_ADDRESS": "x"}},
    {**BASE, "env": {"RAY_AUTH_MODE": "x"}},
    {**BASE, "env": {"VLLM_SERVER_DEV_MODE": "1"}},
    with_host(name="gpu1"),
    with_host(role="boss"),
    with_host(nccl="eth0"),
    with_host(address="a b"),
    with_host(nics=["eth0"]),
    with_host(nics={"nccl": "a-name-that-is-too-long"}),
    with_host(nics={"rdma": "mlx5_0"}),
    with_host(gpus=-1),
    with_host(gpus=65),
    with_host(gpus=True),
    with_host(gpus="2"),
    with_host(gpus=[{}] * 65),
    with_host(gpus=[{"memory": 80}]),
    with_host(gpus=[{"memory": "much"}]),
    with_host(gpus=[{"model": 3090}]),
    with_host(gpus=[{"count": 1}]),
    with_host(labels={"role": "a"}),
    with_host(labels={"a b": "c"}),
    with_host(labels={"a": "b c"}),
    with_host(mounts={"a": "/b"}),
    with_host(mounts={"/a": "b"}),
]


@pytest.mark.parametrize("data", STRUCTURALLY_WRONG, ids=str)
def test_what_load_rejects_for_its_structure_the_schema_rejects(
    data: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(json.dumps(data))  # JSON is YAML
    with pytest.raises(InventoryError):
        load(path)
    assert not VALIDATOR.is_valid(data)


def some(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these keys."""
    return st.fixed_dictionaries({}, optional=keys)


nic = st.sampled_from(["eth0", "ib0", "enp1s0f0np0", "1"])
texts = st.dictionaries(
    st.sampled_from(["A", "b_1"]), st.one_of(st.sampled_from(["", "x"]), st.integers(0, 9))
)
ssh = some(
    user=st.sampled_from(["root", "a\\b", "a@b"]),
    port=st.integers(-1, 65537),
    identity_file=st.sampled_from(["~/x", "../x", ""]),
    proxy_jump=st.sampled_from(["a", "u@a:1", "[::1]"]),
    accept_new=st.booleans(),
    connect_timeout=st.one_of(st.integers(0, 9), st.floats(0, 9)),
)
host = some(
    ssh=ssh,
    role=st.sampled_from(["head", "worker"]),
    node_ip=st.sampled_from(["10.0.0.1", "::1"]),
    nics=some(control=nic, nccl=nic, gloo=nic, rdma=st.lists(nic, max_size=2)),
    gpus=st.one_of(
        st.integers(-1, 65),
        st.lists(
            some(
                model=st.sampled_from(["", "H200"]),
                memory=st.sampled_from([80, 2**34, "80GiB", "1.5 TB", " 7 gb "]),
            ),
            max_size=2,
        ),
    ),
    labels=texts,
    mounts=st.dictionaries(st.sampled_from(["/a", "/b c"]), st.sampled_from(["/x", "/y"])),
    env=texts,
).map(lambda keys: {"address": "10.0.0.1", **keys})
cluster = some(
    image_archive=st.just("a.tar"),
    models=st.just("/m"),
    accelerator=st.sampled_from(["nvidia", "cpu"]),
    ssh=ssh,
    network=some(subnet=st.sampled_from(["10.0.0.0/8", "::/64"])),
    ray_ports=some(gcs=st.integers(1023, 1030), ray_client=st.integers(32766, 32768)),
    packages=some(pip_index=st.sampled_from(["http://h", "https://h:1/simple/"])),
    allow_unauthenticated_ray=st.booleans(),
    env=texts,
)


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cluster, host)
def test_what_load_accepts_the_schema_accepts(
    tmp_path: Path, keys: dict[str, Any], only: dict[str, Any]
) -> None:
    data = {"cluster": "a", "image": "a", **keys, "hosts": {"gpu1": only}}
    path = tmp_path / "some.yaml"
    path.write_text(json.dumps(data))
    try:
        load(path)
    except InventoryError:
        return
    VALIDATOR.validate(data)


def test_the_reference_names_every_key_and_every_reserved_variable() -> None:
    text = (EXAMPLES.parent / "docs" / "inventory.md").read_text()
    models: list[type[BaseModel]] = [
        Inventory,
        Ssh,
        Network,
        GatewayAccess,
        Host,
        Nics,
        Gpu,
        Packages,
    ]
    keys = {name for model in models for name, f in model.model_fields.items() if not f.exclude} | {
        *SET_BY_CLUSTERCTL,
        *DANGEROUS,
    }
    assert sorted(key for key in keys if key not in text) == []
