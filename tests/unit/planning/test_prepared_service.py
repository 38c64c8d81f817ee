"""From a request and what hosts say to a service document, memory planned on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.facts.model import Address, GpuFacts, GpuReport, NicFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import GatewayAccess, Gpu, Host, Inventory
from clusterctl.models.name import resolve
from clusterctl.node.documents import (
    GatewayState,
    Member,
    MembersDocument,
    NodeState,
    RayNode,
    ServiceDocument,
    declared_dir,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.planning.replicas import as_declared
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.arguments import Layout
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import PlannedReplica
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey
from tests.fakes.catalogue import config_of
from tests.fakes.host_facts import gpus, host_facts, nic
from tests.fakes.surveys import survey_of
from tests.fakes.transport import FakeTransport, starts

CONFIG = json.dumps(config_of("Qwen/Qwen2.5-1.5B-Instruct"))
RECORD = f"directory /data/models/qwen\nweights 1 0\n|{CONFIG}\nend\n"


class Cluster:
    """Two hosts with one device each, their answers ready."""

    def __init__(self, accelerator: str) -> None:
        on_gpus = accelerator == "nvidia"
        self.inventory = Inventory(
            cluster="demo",
            image="vllm:v0.32.0",
            accelerator="nvidia" if on_gpus else "cpu",
            env={} if on_gpus else {"VLLM_CPU_KVCACHE_SPACE": "1"},
            hosts=(
                Host(name="gpu1", address="10.0.0.1", role="head", gpus=(Gpu(),)),
                Host(name="gpu2", address="10.0.0.2", gpus=(Gpu(),)),
            ),
        )
        report = gpus(1) if on_gpus else GpuReport((), None)
        self.answers = {f"gpu{n}": probe_of(f"10.0.0.{n}", report) for n in (1, 2)}
        self.transports = {f"gpu{n}": FakeTransport() for n in (1, 2)}
        for transport in self.transports.values():
            transport.on(starts("sh", "-c"), stdout=RECORD)
        nodes = [RayNode(f"n{n}", f"10.0.0.{n}", f"gpu{n}", True, n == 1, 1, 0, 8) for n in (1, 2)]
        version = "0.32.0" if on_gpus else "0.32.0+cpu"
        self.head_files: dict[str, bytes | None] = {}
        self.state = NodeState(
            "gpu1", "head", 0.0, "0.1", "up", 0.0, 0, vllm_version=version, nodes=nodes
        )

    def prepare(
        self,
        *args: str,
        tp: int | None = None,
        own: ServiceDocument | None = None,
        other: ServiceDocument | None = None,
        replicas: str | None = None,
        on: str | None = None,
        declared: Sequence[ServicePlan | ServiceDocument] = (),
    ) -> ServicePlan:
        """`declared`: further services, or plans whose replicas are declared."""
        options = Options("/data/models/qwen", tp, name="qwen", replicas=replicas, on=on)
        request = read_request(options, (), parse_arguments(args))
        model = resolve(request.model, self.inventory.models)
        survey = self.survey(*(each for each in (own, other) if each), *declared)
        return plan_service(survey, request, model)

    def survey(
        self, *declared: ServicePlan | ServiceDocument, gpu2: NodeState | None = None
    ) -> Survey:
        """What the hosts answer while these are declared. `gpu2`: what that supervisor reports."""
        paths = NodePaths("demo")
        files: dict[str, dict[str, bytes | None]] = {"gpu1": dict(self.head_files), "gpu2": {}}

        def declare(document: ServiceDocument) -> None:
            host = "gpu2" if document.host == "10.0.0.2" else "gpu1"
            data = to_json(document).encode()
            files[host][f"{paths.services}/{document.name}.json"] = data
            files["gpu1"][f"{declared_dir('demo')}/services/{document.name}.json"] = data

        for each in declared:
            if isinstance(each, ServicePlan):
                for replica in each.replicas:
                    declare(replica.document)
                data = to_json(each.members).encode()
                files["gpu1"][f"{paths.members}/{each.service}.json"] = data
            else:
                declare(each)
        files["gpu1"][str(paths.state)] = to_json(self.state).encode()
        if gpu2:
            files["gpu2"][str(paths.state)] = to_json(gpu2).encode()
        answers = {host: replace(probe, files=files[host]) for host, probe in self.answers.items()}
        return survey_of(self.inventory, answers, self.transports)


def probe_of(ip: str, report: GpuReport) -> Probe:
    address = (Address(ip, 24, "global"),)
    nic = NicFacts("eth0", "02:00:00:00:00:01", 1500, "up", 25_000, "physical", None, address)
    return Probe(host_facts(nic, gpus=report), {}, (), (), None)


def replaced(document: ServiceDocument, host: str) -> PlannedReplica:
    return PlannedReplica(document=document, layout=Layout(1, 1, seats=(host,)), host=host)


def flag(document: ServiceDocument, name: str) -> str:
    return document.argv[document.argv.index(name) + 1]


@pytest.mark.parametrize(("tp", "tokens"), [(1, 37_376), (2, 74_880)])
def test_on_cpus_the_image_tells_the_cache_and_the_tokens_are_those_vllm_prints(
    tp: int, tokens: int
) -> None:
    prepared = Cluster("cpu").prepare(tp=tp)
    assert prepared.fit is not None
    assert prepared.fit.plan.kv_cache_tokens == tokens
    assert flag(prepared.document, "--tensor-parallel-size") == str(tp)
    assert any(f"{tokens:,} tokens" in note for note in prepared.notes)
    assert "VLLM_PP_LAYER_PARTITION" not in prepared.document.env


def test_serving_again_gives_the_same_document() -> None:
    cluster = Cluster("nvidia")
    first = cluster.prepare()
    assert first.layout.ranks == 1
    assert cluster.prepare(own=first.document).document == first.document


def test_ranks_are_kept_where_the_plan_has_them() -> None:
    cluster = Cluster("nvidia")
    smaller = GpuFacts(0, "GPU-3090", "NVIDIA GeForce RTX 3090", 24_576 * 2**20, "580")
    cluster.answers["gpu1"] = probe_of("10.0.0.1", GpuReport((smaller,), None))
    prepared = cluster.prepare(tp=1)
    assert prepared.fit is not None
    (rank,) = prepared.fit.plan.ranks
    assert prepared.layout.hosts == (rank.host,)
    assert prepared.document.node_ips == [cluster.inventory.host(rank.host).address]
    survey = cluster.survey(prepared)
    again = as_declared(survey, survey.replicas["qwen"])
    assert again.layout.hosts == (rank.host,), "a restart is proven on the same host"


def test_the_table_of_ranks_names_the_host_that_a_replica_is_kept_on() -> None:
    cluster = Cluster("nvidia")
    there = cluster.prepare(tp=1, on="gpu2")
    anywhere = replace(there, members=replace(there.members, on=""))
    again = cluster.prepare(tp=1, declared=(anywhere,))
    assert again.layout.hosts == ("gpu2",)
    assert again.fit
    assert [rank.host for rank in again.fit.plan.ranks] == ["gpu2"]


def test_a_declared_service_that_is_not_up_yet_is_named_where_it_leaves_too_few_gpus() -> None:
    cluster = Cluster("nvidia")
    other = replace(cluster.prepare(tp=1).document, name="big", port=8001)
    with pytest.raises(DoesNotFit, match="1 free") as caught:
        cluster.prepare(tp=2, other=other)
    assert caught.value.detail == "service big (declared) holds 1 GPU"
    assert cluster.prepare(tp=1, other=other).layout.hosts == ("gpu2",)


@pytest.mark.parametrize(("holds", "left"), [("gpu1", "gpu2"), ("gpu2", "gpu1")])
def test_a_declared_service_holds_the_gpu_that_it_is_kept_on(holds: str, left: str) -> None:
    cluster = Cluster("nvidia")
    other = replace(cluster.prepare(tp=1, on=holds).document, name="big")
    listed = MembersDocument("big", ["big"], 8001, [Member(1, holds, other.host, other.port)])
    plan = ServicePlan(replicas=(replaced(other, holds),), members=listed)
    assert cluster.prepare(tp=1, declared=(plan,)).layout.hosts == (left,)


def test_a_gpu_cluster_pays_no_further_round_trip() -> None:
    cluster = Cluster("nvidia")
    cluster.prepare(tp=2)
    assert [len(transport.calls) for transport in cluster.transports.values()] == [1, 1]


def test_tensor_parallel_over_25_gbit_is_done_and_its_cost_is_said() -> None:
    notes = " ".join(Cluster("nvidia").prepare(tp=2).notes)
    assert "--data-parallel-size 2 would give" in notes


def test_what_cannot_work_is_refused_before_anything_is_written() -> None:
    cluster = Cluster("nvidia")
    with pytest.raises(DoesNotFit, match="max_position_embeddings=32768") as caught:
        cluster.prepare("--max-model-len", "64K", tp=1)
    words = "clusterctl serve /data/models/qwen --tp 1 -- --max-model-len 32768"
    assert caught.value.hint == words
    assert not any(transport.files for transport in cluster.transports.values())


def test_a_config_that_no_one_understands_is_served_all_the_same() -> None:
    cluster = Cluster("nvidia")
    strange: dict[str, Any] = {
        "architectures": ["X"],
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
    }
    record = RECORD.replace(CONFIG, json.dumps(strange))
    for transport in cluster.transports.values():
        transport.on(starts("sh", "-c"), stdout=record)
    prepared = cluster.prepare(tp=1)
    assert prepared.fit is None
    assert any("memory is not planned" in note for note in prepared.notes)


def test_all_addresses_are_refused_where_one_is_of_the_internet() -> None:
    cluster = Cluster("cpu")
    probe = cluster.answers["gpu1"]
    facts = replace(probe.facts, nics=(*probe.facts.nics, nic("eth9", "8.8.4.4")))
    cluster.answers["gpu1"] = replace(probe, facts=facts)
    with pytest.raises(UsageError, match=r"also answer on 8\.8\.4\.4 \(eth9\) of gpu1,"):
        cluster.prepare("--host", "0.0.0.0")
    network = cluster.inventory.network.model_copy(update={"public": True})
    for known in ({"network": network}, {"gateway": GatewayAccess(tls=True)}):
        cluster.inventory = cluster.inventory.model_copy(update=known)
        assert cluster.prepare("--host", "0.0.0.0").members.listen == "0.0.0.0"


def test_all_addresses_are_refused_where_another_gateways_host_has_one_of_the_internet() -> None:
    cluster = Cluster("cpu")
    probe = cluster.answers["gpu2"]
    facts = replace(probe.facts, nics=(*probe.facts.nics, nic("eth9", "8.8.4.4")))
    cluster.answers["gpu2"] = replace(probe, facts=facts)
    assert cluster.prepare("--host", "0.0.0.0").members.listen == "0.0.0.0"
    access = GatewayAccess(hosts=("gpu2",))
    cluster.inventory = cluster.inventory.model_copy(update={"gateway": access})
    with pytest.raises(UsageError, match=r"also answer on 8\.8\.4\.4 \(eth9\) of gpu2,"):
        cluster.prepare("--host", "0.0.0.0")


def test_a_service_on_all_addresses_is_told_where_clients_reach_it() -> None:
    cluster = Cluster("cpu")
    cluster.state = replace(cluster.state, gateway=GatewayState("idle"))
    prepared = cluster.prepare("--host", "0.0.0.0")
    assert flag(prepared.document, "--host") == "10.0.0.1", "replicas are for the gateway alone"
    assert prepared.endpoint.url == "http://10.0.0.1:8000"


def test_clients_are_told_of_every_gateway_unless_these_share_an_address() -> None:
    cluster = Cluster("cpu")
    cluster.state = replace(cluster.state, gateway=GatewayState("up"))
    worker = replace(cluster.state, host="gpu2", role="worker")
    request = read_request(Options("/data/models/qwen", name="qwen"), (), parse_arguments(()))

    def with_gateways(access: GatewayAccess) -> ServicePlan:
        cluster.inventory = cluster.inventory.model_copy(update={"gateway": access})
        model = resolve(request.model, cluster.inventory.models)
        return plan_service(cluster.survey(gpu2=worker), request, model)

    plan = with_gateways(GatewayAccess(hosts=("gpu2",)))
    assert plan.gateway_url == "http://10.0.0.1:8000"
    assert plan.other_urls == ("http://10.0.0.2:8000",)
    assert "clients can also use http://10.0.0.2:8000" in plan.notes

    shared = GatewayAccess(hosts=("gpu2",), virtual_ip=IPv4Address("10.0.0.100"))
    plan = with_gateways(shared)
    assert (plan.gateway_url, plan.other_urls) == ("http://10.0.0.100:8000", ())
