"""How models are served in these tests, and what is asked of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from urllib.request import Request, urlopen

from clusterctl.lab.models import QWEN, TINY
from tests.gpu.conftest import ON_CPUS
from tests.lab.cluster import Operator

MODEL = f"/data/models/{TINY if ON_CPUS else QWEN}"
EXPERTS = "qwen3-30b-a3b"
DENSE = "qwen3-8b"
WEIGHTS = "/data/models/weights"
"""DENSE with weights, in files of real size."""
NAME = "served"


@dataclass(frozen=True)
class Layout:
    """How a model is served: the words of `serve`, and those with which `fit` says the same."""

    name: str
    serve: tuple[str, ...]
    fit: tuple[str, ...]
    model: str = MODEL
    estimated: bool = True
    """Whether its measured speed has to be near what `fit` said."""
    service: str = NAME
    only: str = ""
    """The one host that serves it; all if it is empty."""
    served_again: bool = False
    """Whether it is served, though not measured, where an earlier run measured it: the faults that
    follow need a service."""

    def on(self, gpus: int, hosts: int) -> Layout:
        """The layout on so many GPUs of all hosts."""
        sizes = {"all": gpus, "each": gpus // hosts}

        def sized(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word.format(**sizes) for word in words)

        name = self.name.format(**sizes)
        return replace(self, name=name, serve=sized(self.serve), fit=sized(self.fit))


# {all} stands for the number of GPUs of all hosts, {each} for those of one.
COPIES = ("--tp", "1", "--", "--data-parallel-size", "{all}")
ONE = Layout("one GPU", ("--tp", "1"), ("--tp", "1"), served_again=True)
TP = Layout("TP {all}", ("--tp", "{all}"), ("--tp", "{all}"), served_again=True)
PAIR = ("--tp", "2", "--on", "gpu1")
IN_ONE_HOST = Layout("TP 2 in one host", PAIR, PAIR, only="gpu1")
PARTS = ("--tp", "{each}", "--pp", "2")
STAGES = Layout("TP {each}, PP 2", PARTS, PARTS)
REPLICAS = Layout("{all} replicas", ("--tp", "1", "--replicas", "max"), COPIES, served_again=True)
COPIES_OF_VLLM = Layout("DP {all}", ("--tp", "1", "--dp", "{all}"), COPIES)
# The exchange of tokens between divided experts is not estimated
DIVIDED = Layout(
    "DP {all} with divided experts",
    ("--tp", "1", "--dp", "{all}", "--ep"),
    (*COPIES, "--enable-expert-parallel"),
    f"/data/models/{EXPERTS}-shape",
    estimated=False,
)
OTHER_MODELS = ("qwen3-8b", "qwen3-14b", EXPERTS)


FP8 = ("--tp", "1", "--on", "gpu1", "--", "--quantization", "fp8")


@dataclass(frozen=True)
class Unlike:
    """A service of a fleet: its entry in the file, and the words of `serve` that say the same."""

    entry: dict[str, object]
    words: tuple[str, ...]


def fleet_with(shape: str) -> dict[str, Unlike]:
    """Weights of real size, two models on one GPU, one that sleeps, and fp8 while loading."""
    half = Unlike(
        {"model": MODEL, "gpu_share": 0.45, "on": "gpu2"},
        (MODEL, "--gpu-share", "0.45", "--on", "gpu2"),
    )
    return {
        "weights": Unlike(
            {"model": WEIGHTS, "tp": 1, "on": "gpu1"}, (WEIGHTS, "--tp", "1", "--on", "gpu1")
        ),
        "left": half,
        "right": half,
        "sleeper": Unlike(
            {"model": shape, "tp": 1, "on": "gpu2", "idle": "20s"},
            (shape, "--tp", "1", "--on", "gpu2", "--idle", "20s"),
        ),
        "fp8": Unlike(
            {"model": shape, "tp": 1, "on": "gpu1", "flags": {"quantization": "fp8"}}, (shape, *FP8)
        ),
    }


def complete(api: str, model: str, key: str) -> int:
    """Return how many tokens came."""
    body = json.dumps({"model": model, "prompt": "hello", "max_tokens": 16, "ignore_eos": True})
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    asked = Request(f"{api}/completions", body.encode(), headers)  # noqa: S310
    with urlopen(asked, timeout=120) as answer:  # noqa: S310 - the test's own cluster
        return int(json.load(answer)["usage"]["completion_tokens"])


def stop_services(operator: Operator) -> None:
    """All at once."""
    if not operator.run("status", "--json").json["services"]:
        return
    file = operator.home / "no-services.yaml"
    file.write_text("services: {}\n")
    operator.ok("apply", str(file), "--prune", "--yes")


def serve_if_none(operator: Operator) -> None:
    if not operator.run("status", "--json").json["services"]:
        operator.ok("serve", MODEL, "--name", NAME, "--tp", "1", "--yes")
    assert answers(operator)


def answers(operator: Operator) -> bool:
    """Whether all services are ready, as status says of those that answer."""
    services = operator.run("status", "--json").json["services"]
    return bool(services) and all(one["state"] == "ready" for one in services)
