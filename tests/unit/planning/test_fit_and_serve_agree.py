"""`fit` and `serve --dry-run` on one cluster, asked for the same: the same layout for the same
reason, or the same refusal."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.commands.fit import plan_request
from clusterctl.errors import ClusterctlError, DoesNotFit
from clusterctl.facts.model import Address, GpuFacts, GpuReport, NicFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.models.name import resolve
from clusterctl.node.documents import NodeState, RayNode, ServiceDocument, ServiceState, to_json
from clusterctl.node.files import NodePaths
from clusterctl.planning.fit_request import FitArguments
from clusterctl.planning.planner import plan
from clusterctl.planning.report import FitReport
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey
from tests.fakes.catalogue import SHAPED, config_of
from tests.fakes.host_facts import host_facts
from tests.fakes.surveys import survey_of
from tests.fakes.transport import FakeTransport, starts

MIB = {
    "NVIDIA H200": 143_771,
    "NVIDIA H100 80GB HBM3": 81_559,
    "NVIDIA A100-SXM4-40GB": 40_960,
    "NVIDIA GeForce RTX 3090": 24_576,
    "Tesla T4": 15_360,
    "NVIDIA New": 65_536,
}
CONFIGS = [
    *(dict(entry.config) for entry in SHAPED),
    {**config_of("Qwen/Qwen3-8B"), "architectures": ["NewForCausalLM"]},
    {**config_of("Qwen/Qwen3-8B"), "num_attention_heads": 24, "num_key_value_heads": 6},
]
MODEL = "/data/models/some"
PATHS = NodePaths("demo")


@dataclass(frozen=True)
class Cluster:
    """Hosts with their GPUs, a model, and what is asked for; `taken`: GPUs of another service."""

    config: dict[str, Any]
    gpus: tuple[tuple[str, int], ...]
    network: int | None
    flags: tuple[str, ...] = ()
    tp: int | None = None
    pp: int | None = None
    taken: int = 0
    served: ServiceDocument | None = None

    @cached_property
    def inventory(self) -> Inventory:
        hosts = tuple(
            Host(name=f"gpu{n}", address=f"10.0.0.{n}", role="head" if n == 1 else "worker",
                 gpus=(Gpu(),) * count)
            for n, (_, count) in enumerate(self.gpus, 1)
        )  # fmt: skip
        return Inventory(cluster="demo", image="vllm:v0.25.1", hosts=hosts)

    @cached_property
    def declared(self) -> dict[str, ServiceDocument]:
        seats = [f"10.0.0.{n}" for n, (_, count) in enumerate(self.gpus, 1) for _ in range(count)]
        argv = ["vllm", "serve", "/m"]
        other = ServiceDocument(
            "other", "m", "m", argv, {}, "h", 8199, 1, 1, self.taken, "f",
            node_ips=seats[: self.taken],
        )  # fmt: skip
        found = [*([other] if self.taken else []), *([self.served] if self.served else [])]
        return {document.name: document for document in found}

    @cached_property
    def state(self) -> NodeState:
        nodes = [
            RayNode(f"n{n}", f"10.0.0.{n}", f"gpu{n}", True, n == 1, count, 0, 8)
            for n, (_, count) in enumerate(self.gpus, 1)
        ]
        services = [ServiceState(name, "declared", 0.0) for name in self.declared]
        return NodeState("gpu1", "head", 0.0, "0.1", "up", 0.0, 0, vllm_version="0.25.1",
                         nodes=nodes, services=services)  # fmt: skip

    @cached_property
    def answers(self) -> dict[str, Probe]:
        files: dict[str, bytes | None] = {
            f"{PATHS.services}/{name}.json": to_json(document).encode()
            for name, document in self.declared.items()
        }
        files[str(PATHS.state)] = to_json(self.state).encode()
        found = {}
        for n, (name, count) in enumerate(self.gpus, 1):
            nic = NicFacts("eth0", "02:00:00:00:00:01", 9000, "up", self.network, "physical", None,
                           (Address(f"10.0.0.{n}", 24, "global"),))  # fmt: skip
            devices = tuple(
                GpuFacts(i, f"GPU-{n}-{i}", name, MIB[name] * 2**20, "580") for i in range(count)
            )
            facts = host_facts(nic, gpus=GpuReport(devices, None))
            found[f"gpu{n}"] = Probe(facts, files if n == 1 else {}, (), (), None)
        return found

    @cached_property
    def transports(self) -> dict[str, FakeTransport]:
        record = f"directory {MODEL}\nweights 1 0\n|{json.dumps(self.config)}\nend\n"
        found = {name: FakeTransport() for name in self.answers}
        for transport in found.values():
            transport.on(starts("sh", "-c"), stdout=record)
        return found

    @cached_property
    def survey(self) -> Survey:
        return survey_of(self.inventory, self.answers, self.transports)

    def fit(self) -> FitReport | ClusterctlError:
        asked = FitArguments(MODEL, self.tp, self.pp, arguments=self.flags)
        try:
            request, _ = plan_request(self.survey, asked)
            return plan(request)
        except ClusterctlError as error:
            return error

    def serve(self) -> ServicePlan | ClusterctlError:
        request = read_request(Options(MODEL, self.tp, self.pp), (), parse_arguments(self.flags))
        model = resolve(MODEL, self.inventory.models)
        try:
            return plan_service(self.survey, request, model)
        except ClusterctlError as error:
            return error


hosts = st.lists(
    st.tuples(st.sampled_from(list(MIB)), st.sampled_from([1, 2, 3, 4, 8])), min_size=1, max_size=3
)
flags = st.sampled_from(
    [
        (),
        ("--max-model-len", "8192"),
        ("--max-model-len", "400000"),
        ("--max-model-len", "auto", "--gpu-memory-utilization", "0.6"),
        ("--kv-cache-dtype", "fp8", "--max-num-seqs", "32"),
        ("--data-parallel-size", "2", "--max-model-len", "4096"),
        ("--quantization", "fp8", "--enforce-eager"),
    ]
)
sizes = st.sampled_from([(None, None)] * 4 + [(1, None), (2, None), (None, 2), (3, 2), (8, 1)])
clusters = st.builds(
    lambda config, gpus, network, flags, cut, taken: Cluster(
        config, tuple(gpus), network, flags, cut[0], cut[1], taken
    ),
    st.sampled_from(CONFIGS),
    hosts,
    st.sampled_from([None, 10_000, 100_000, 400_000]),
    flags,
    sizes,
    st.sampled_from([0, 0, 0, 1]),
)


def assert_agreed(cluster: Cluster) -> None:
    report, served = cluster.fit(), cluster.serve()
    if isinstance(report, ClusterctlError):
        assert isinstance(served, ClusterctlError)
        assert _text(report) == _text(served)
        return
    if report.refused:
        fatal = [problem for problem in report.problems if problem.fatal]
        assert isinstance(served, DoesNotFit)
        assert served.summary == f"{report.plan.model} cannot run like this: {fatal[0].text}"
        said = (served.detail or "").splitlines()
        assert said[: len(fatal)] == [f"{problem.name}: {problem.text}" for problem in fatal]
        assert all(any(advice.text in line for line in said) for advice in report.advice)
        return
    assert isinstance(served, ServicePlan), served
    assert served.fit is not None, served.notes
    placement, layout = report.plan.placement, served.layout
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (placement.tp, placement.pp)
    assert layout.reason == report.reason
    assert served.fit.plan.ranks == report.plan.ranks
    assert served.fit.proposals == report.proposals
    assert (served.fit.problems, served.fit.advice) == (report.problems, report.advice)
    assert served.fit.doubts == report.doubts
    assert set(report.notes) <= set(served.notes)
    if cluster.tp is None and cluster.pp is None and report.proposals and not cluster.served:
        assert report.plan == report.proposals[0].plan


def _text(error: ClusterctlError) -> tuple[str, str | None, str | None, int]:
    return str(error), error.hint, error.detail, error.exit_code


@given(clusters)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_fit_and_serve_agree_to_the_letter(cluster: Cluster) -> None:
    if not cluster.taken < sum(count for _, count in cluster.gpus):
        return  # nothing is free: `fit` plans for all and says so, `serve` refuses
    assert_agreed(cluster)


def test_both_keep_what_is_served_and_say_what_would_come_first() -> None:
    qwen = config_of("Qwen/Qwen2.5-1.5B-Instruct")
    first = Cluster(qwen, (("NVIDIA H200", 2),), None, tp=2).serve()
    assert isinstance(first, ServicePlan)
    again = Cluster(qwen, (("NVIDIA H200", 2),), None, served=first.document)
    assert_agreed(again)
    report = again.fit()
    assert isinstance(report, FitReport)
    assert (report.plan.placement.tp, report.reason) == (2, "the current layout")
    assert report.proposals[0].plan.placement.tp == 1
    assert any("serve keeps the current layout" in note for note in report.notes)


def test_both_leave_gpus_to_what_else_is_served_and_say_who_has_them() -> None:
    cluster = Cluster(config_of("Qwen/Qwen3-8B"), (("NVIDIA H200", 2),), None, taken=1)
    assert_agreed(cluster)
    report = cluster.fit()
    assert isinstance(report, FitReport)
    assert report.plan.placement.replicas == 1
    assert any("service other (declared) holds 1 GPU" in note for note in report.notes)


def test_where_nothing_is_free_fit_plans_for_all_and_says_who_has_them() -> None:
    cluster = Cluster(config_of("Qwen/Qwen3-8B"), (("NVIDIA H200", 1),), None, taken=1)
    report, served = cluster.fit(), cluster.serve()
    assert isinstance(report, FitReport)
    said = "no GPU is free, so this is planned as if all were: service other (declared) holds 1 GPU"
    assert said in report.notes
    assert isinstance(served, DoesNotFit)
    assert served.detail == "service other (declared) holds 1 GPU"


def test_the_two_that_once_differed() -> None:
    """R1-70B on 8 H100: `fit` said TP 8, `serve` took TP 4. Qwen 1.5B on 2 H200: two replicas
    against one GPU, and nothing said so."""
    large = Cluster(
        config_of("deepseek-ai/DeepSeek-R1-Distill-Llama-70B"),
        (("NVIDIA H100 80GB HBM3", 8),),
        None,
    )
    assert_agreed(large)
    taken = large.serve()
    assert isinstance(taken, ServicePlan)
    assert taken.layout.tensor_parallel == 8
    small = Cluster(config_of("Qwen/Qwen2.5-1.5B-Instruct"), (("NVIDIA H200", 2),), None)
    assert_agreed(small)
    one = small.serve()
    assert isinstance(one, ServicePlan)
    assert one.layout.ranks == 1
    said = "serve starts one of the 2 replicas; --replicas 2 starts all of them"
    assert said in one.notes
