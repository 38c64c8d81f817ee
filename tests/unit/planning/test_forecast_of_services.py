"""What `serve` decides from a forecast: layouts, refusals, notes, and when it says nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.models.config_json import described
from clusterctl.models.name import resolve
from clusterctl.models.version import parse_version
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.forecast import MemoryForecast, forecast_memory
from clusterctl.planning.hardware import CPU, parse_gpus
from clusterctl.planning.options import own_limits, settings_key
from clusterctl.planning.overheads import Measured
from clusterctl.planning.placement import PARTITION, HostGpus, Site, usual_fabric
from clusterctl.planning.report import Hardware
from clusterctl.planning.rules import rules_for
from clusterctl.planning.speed import parse_network
from clusterctl.serving.arguments import UNDECIDED, Launch, Layout, serve_argv
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.service import build_service
from clusterctl.serving.vllm_flags import parse_arguments
from tests.fakes.catalogue import config_of

TINY = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 128, "intermediate_size": 384,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 512, "max_position_embeddings": 4096, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_1_5B = config_of("Qwen/Qwen2.5-1.5B-Instruct")
QWEN3_8B = config_of("Qwen/Qwen3-8B")
R1_70B = config_of("deepseek-ai/deepseek-r1-distill-llama-70b")
R1_32B = config_of("deepseek-ai/deepseek-r1-distill-qwen-32b")
LAB = Hardware(
    (Site("gpu1", (CPU,)), Site("gpu2", (CPU,))),
    defaults=accelerator_named("cpu").defaults,
    env={"VLLM_CPU_KVCACHE_SPACE": "1"},
    vllm="0.32.0+cpu",
)


def hosts(*gpus: str, network: str | None = None, vllm: str = "0.25.1") -> Hardware:
    sites = tuple(
        Site(f"gpu{number}", found, usual_fabric(found))
        for number, found in enumerate(map(parse_gpus, gpus), 1)
    )
    return Hardware(sites, parse_network(network) if network else None, vllm=vllm)


class Case:
    """A service asked for on some hardware, up to its decision."""

    def __init__(
        self,
        config: Mapping[str, Any] | str | None,
        hardware: Hardware,
        *args: str,
        tp: int | None = None,
        pp: int | None = None,
        own: ServiceDocument | None = None,
        model: str = "/data/models/some",
    ) -> None:
        self.own = own
        self.hardware = hardware
        self.request: ServiceRequest = read_request(
            Options(model, tp, pp), (), parse_arguments(args)
        )
        self.config = config if isinstance(config, str) or config is None else json.dumps(config)
        gpus = [gpu for site in hardware.sites for gpu in site.gpus]
        self.launch = Launch(
            request=self.request, model_argument=model, served_names=("some",), layout=UNDECIDED,
            host="10.0.0.1", shape=described(self.config),
            defaults=hardware.defaults, version=parse_version(hardware.vllm or ""),
            limits=own_limits(rules_for(hardware.vllm), gpus),
        )  # fmt: skip

    def forecast(self) -> MemoryForecast:
        model = resolve(self.request.model, "/data/models")
        return forecast_memory(self.launch, model, self.config, self.hardware, self.own)

    def layout(self) -> Layout:
        return self.forecast().layout

    def document(self) -> ServiceDocument:
        forecast = self.forecast()
        env = {PARTITION: forecast.partition} if forecast.partition else {}
        return build_service(replace(self.launch, layout=forecast.layout), env=env)


@pytest.mark.parametrize(("config", "tokens"), [(TINY, 2_097_152), (QWEN_1_5B, 74_880)])
def test_the_lab_serves_what_it_serves(config: dict[str, Any], tokens: int) -> None:
    forecast = Case(config, LAB, tp=2).forecast()
    assert forecast.report is not None
    assert forecast.report.plan.kv_cache_tokens == tokens
    assert not any("speed" in note for note in forecast.notes)


def test_on_cpus_of_unknown_cache_nothing_is_refused() -> None:
    forecast = Case(R1_32B, replace(LAB, env={}), tp=2).forecast()
    assert forecast.report is not None
    assert any(problem.fatal for problem in forecast.report.problems)
    assert not forecast.report.refused
    assert any("nothing is refused" in note for note in forecast.notes)


def test_a_cache_too_small_for_the_context_is_refused_on_cpus_too() -> None:
    with pytest.raises(DoesNotFit):
        Case(R1_32B, LAB, tp=1).forecast()


def test_what_cannot_fit_names_the_command_that_does() -> None:
    share = ("--gpu-memory-utilization", "0.85")
    case = Case(QWEN3_8B, hosts("RTX 4090"), *share, tp=1, model="qwen3-8b")
    with pytest.raises(DoesNotFit) as caught:
        Case(R1_32B, hosts("RTX 4090"), tp=1).forecast()
    assert caught.value.exit_code == 11
    assert "61.1 GiB of weights" in caught.value.summary
    with pytest.raises(DoesNotFit) as caught:
        case.forecast()
    hint = caught.value.hint or ""
    words = "clusterctl serve qwen3-8b --tp 1 -- --gpu-memory-utilization 0.85 --max-model-len"
    assert hint.startswith(words)
    again = hint.partition(" -- ")[2].split()
    assert Case(QWEN3_8B, hosts("RTX 4090"), *again, tp=1).forecast().report is not None


def test_a_layout_and_settings_that_do_together_are_one_command() -> None:
    case = Case(R1_32B, hosts("4xRTX 3090"), "--gpu-memory-utilization", "0.3", tp=2)
    with pytest.raises(DoesNotFit) as caught:
        case.forecast()
    hint = caught.value.hint or ""
    words = "clusterctl serve /data/models/some --tp 4 --pp 1 -- --gpu-memory-utilization 0.9 "
    assert hint.startswith(f"{words}--max-model-len ")
    again = Case(R1_32B, hosts("4xRTX 3090"), *hint.partition(" -- ")[2].split(), tp=4, pp=1)
    assert again.forecast().report is not None


def test_a_context_beyond_the_models_own_is_refused_before_anything_starts() -> None:
    with pytest.raises(DoesNotFit, match="max_position_embeddings=4096"):
        Case(TINY, LAB, "--max-model-len", "100000", tp=1).forecast()


def test_what_the_planner_puts_first_is_taken_as_one_service() -> None:
    case = Case(QWEN_1_5B, hosts("2xH200", "2xH200"))
    assert case.layout().ranks == 1
    assert any("serve starts one of the 4 replicas" in note for note in case.forecast().notes)
    report = case.forecast().report
    assert report is not None
    assert report.plan.placement.replicas == 1
    layout = Case(R1_70B, hosts("8xH100")).layout()
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (8, 1)
    layout = Case(R1_32B, hosts("4xRTX 4090"), "--max-model-len", "8192").layout()
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (4, 1)
    layout = Case(R1_32B, hosts("A100", "A100"), "--gpu-memory-utilization", "0.7").layout()
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (1, 2)


def test_nothing_that_fits_is_refused_with_what_would() -> None:
    with pytest.raises(DoesNotFit, match="cannot run like this") as caught:
        Case(R1_70B, hosts("T4", "T4")).layout()  # too large in 4 bits, too
    assert "would hold it" in (caught.value.detail or "")


def test_a_layout_that_serves_stays_when_its_service_is_asked_for_again() -> None:
    first = Case(QWEN_1_5B, hosts("2xH200"), tp=2).document()
    again = Case(QWEN_1_5B, hosts("2xH200"), own=first)
    assert again.layout().tensor_parallel == 2
    assert again.document() == first


def test_unlike_gpus_get_layers_by_what_they_hold() -> None:
    small = ("--max-model-len", "8192", "--max-num-seqs", "256")
    case = Case(R1_32B, hosts("RTX 3090", "H800", vllm="0.33.0"), *small, pp=2)
    assert case.forecast().partition == "13,51"
    assert any("13,51" in note for note in case.forecast().notes)
    assert case.document().env["VLLM_PP_LAYER_PARTITION"] == "13,51"
    given = replace(case.hardware, env={"VLLM_PP_LAYER_PARTITION": "14,50"})
    assert Case(R1_32B, given, *small, pp=2).forecast().partition == ""


def test_what_was_learned_does_not_move_layers_of_a_service_that_runs() -> None:
    small = ("--max-model-len", "8192", "--max-num-seqs", "256")
    hardware = hosts("RTX 3090", "H800", vllm="0.33.0")
    case = Case(R1_32B, hardware, *small, pp=2)
    first, report = case.document(), case.forecast().report
    assert report is not None
    settings = settings_key(report.plan.settings)
    taught = tuple(
        replace(site, measured=((1, Measured(1.5 if site.host == "gpu1" else 0.2, 0.3, settings)),))
        for site in hardware.sites
    )
    later = replace(hardware, sites=taught)
    assert Case(R1_32B, later, *small, pp=2).document() != first
    assert Case(R1_32B, later, *small, pp=2, own=first).document() == first


def test_with_gpus_to_spare_the_ranks_are_kept_on_those_that_the_split_is_for() -> None:
    small = ("--max-model-len", "2048", "--gpu-memory-utilization", "0.9")
    case = Case(QWEN3_8B, hosts("RTX 3090", "H800", "H800"), *small, pp=2)
    found = case.forecast()
    assert found.partition
    assert found.places == ("gpu1", "gpu2")


def test_a_slow_link_is_told_and_obeyed() -> None:
    slow = Case(QWEN_1_5B, hosts("H200", "H200", network="32Gbit"), tp=2)
    notes = " ".join(slow.forecast().notes)
    assert "--tp 1 -- --data-parallel-size 2 would give" in notes
    assert slow.layout().tensor_parallel == 2
    unknown = Case(QWEN_1_5B, hosts("H200", "H200"), tp=2)
    assert not any("tokens/s" in note for note in unknown.forecast().notes)


@pytest.mark.parametrize(
    ("config", "args", "words"),
    [
        (None, (), "nothing is known about this model"),
        ("{", (), "not JSON"),
        ({"architectures": ["X"]}, (), "not planned"),
        (TINY, ("--kv-cache-dtype", "fp2"), "fp2"),
    ],
)
def test_what_is_not_understood_is_served_with_a_note(
    config: Any, args: tuple[str, ...], words: str
) -> None:
    forecast = Case(config, hosts("H100"), *args, tp=1).forecast()
    assert forecast.report is None
    assert words in forecast.notes[0]


def test_an_unknown_architecture_is_never_refused() -> None:
    strange = {**R1_32B, "architectures": ["NewForCausalLM"]}
    for asked in ({"tp": 1}, {}):
        case = Case(strange, hosts("T4", "T4"), **asked)  # type: ignore[arg-type]
        assert "NewForCausalLM" in " ".join(case.forecast().notes)
    overridden = Case(TINY, LAB, "--hf-overrides", "{}", "--max-model-len", "9999", tp=1)
    assert "--hf-overrides" in " ".join(overridden.forecast().notes)


def test_hosts_whose_gpus_cannot_be_read_serve_unplanned() -> None:
    unread = replace(hosts("H100"), sites=(), gpus=(HostGpus("gpu1", 1),))
    forecast = Case(TINY, unread).forecast()
    assert "could not be read" in forecast.notes[0]
    assert forecast.layout.ranks == 1


@pytest.mark.parametrize("flags", [("--gpu-memory-utilization", "1.2"), ("--max-model-len", "1T")])
def test_values_that_no_vllm_takes_are_refused(flags: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match=flags[0]):
        Case(TINY, hosts("H100"), *flags).forecast()


def test_the_plan_is_for_the_flags_that_are_passed() -> None:
    case = Case(QWEN_1_5B, hosts("H200"), tp=1)
    argv = serve_argv(replace(case.launch, layout=case.layout()))
    report = case.forecast().report
    assert report is not None
    batch = report.plan.settings.batch
    assert argv[argv.index("--max-num-seqs") + 1] == str(batch.requests)
    assert argv[argv.index("--max-num-batched-tokens") + 1] == str(batch.tokens)
