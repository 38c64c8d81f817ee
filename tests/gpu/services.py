"""How models are served in these tests, and what is asked of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from clusterctl.lab.models import QWEN, TINY
from tests.gpu.conftest import ON_CPUS, Table
from tests.lab.cluster import Operator
from tests.lab.conftest import OnHost

MODEL = f"/data/models/{TINY if ON_CPUS else QWEN}"
EXPERTS = "qwen3-30b-a3b"
DENSE = "qwen3-8b"
WEIGHTS = "/data/models/weights"
"""DENSE with weights, in files of real size."""
NAME = "served"
CONTAINER = "clusterctl-lab"

KV_CACHE = 0.01
"""How far off the predicted tokens of the KV cache may be."""


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


def fleet_file(directory: Path, services: dict[str, dict[str, object]]) -> str:
    """Write a fleet file, and return its path."""
    file = directory / "fleet.yaml"
    file.write_text(json.dumps({"services": services}))
    return str(file)


def again(operator: Operator, words: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Serve each service once more by its model and flags, which must change nothing; return what
    `serve` says of each."""
    said = {}
    for name, (model, *flags) in words.items():
        ran = operator.ok("serve", model, "--name", name, "--yes", "--json", *flags)
        assert ran.json["changed"] is False, ran.text
        said[name] = ran.json
    return said


def require_forecasts(served: dict[str, Any], table: Table) -> None:
    """Keep what was predicted of each service, and require the KV cache to be as predicted."""
    for name, one in served.items():
        table.add(f"forecast of {name}", reported=one["reported"])
    found = {
        (name, each["name"]): each["off"]
        for name, one in served.items()
        for each in one["reported"]
    }
    cache = {name: found.get((name, "kv_cache_tokens")) for name in served}
    assert all(off is not None and abs(off) < KV_CACHE for off in cache.values()), cache


def starts(operator: Operator) -> dict[str, dict[str, float]]:
    """Return the seconds of each stage of the last start of each service, and of all of it."""
    services = operator.run("status", "--json").json["services"]
    return {
        one["name"]: {**one["start_seconds"], "all": round(sum(one["start_seconds"].values()), 1)}
        for one in services
    }


def causes(operator: Operator) -> list[str]:
    """Return what `diagnose` names, in its order."""
    found = operator.run("diagnose", "--json").json["causes"]
    return [f"{one['id']} ({one['certainty']}): {one['cause']}" for one in found]


def api_key(on_host: OnHost) -> str:
    return on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()


def used_mib(on_host: OnHost) -> dict[str, list[int]]:
    """Return the memory in use on each GPU, by host."""
    query = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null"
    return {
        name: [int(line) for line in on_host(name, query).stdout.split()]
        for name in ("gpu1", "gpu2")
    }


def complete(api: str, model: str, key: str, tokens: int = 24) -> str:
    """Return the text of that many tokens, each the likeliest."""
    body = {"model": model, "prompt": "hello", "max_tokens": tokens, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = json.dumps({**body, "ignore_eos": True}).encode()
    asked = Request(f"{api}/completions", data, headers)  # noqa: S310
    with urlopen(asked, timeout=120) as answer:  # noqa: S310 - the test's own cluster
        said = json.load(answer)
    assert said["usage"]["completion_tokens"] == tokens, said
    return str(said["choices"][0]["text"])


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
