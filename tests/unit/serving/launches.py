"""A model that is to be served on two hosts, for tests of what vLLM is told."""

from __future__ import annotations

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.models.catalogue import by_alias
from clusterctl.models.version import Version
from clusterctl.serving.arguments import BatchLimits, Launch, Layout
from clusterctl.serving.config_file import parse_config
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments

PAIR = ("gpu1", "gpu2")
TWO = Layout(2, 1, reason="as asked", seats=PAIR)
ONE = Layout(1, 1, reason="as asked", seats=("gpu1",))


def launch(
    *extra: str,
    layout: Layout = TWO,
    config: str = "",
    alias: str | None = None,
    cpu: bool = False,
    version: Version | None = (0, 33, 0),
    limits: BatchLimits | None = None,
    random_weights: bool = False,
) -> Launch:
    request = read_request(
        Options("m"), parse_config(config, "config.yaml"), parse_arguments(extra)
    )
    entry = by_alias(alias) if alias else None
    return Launch(
        request=request,
        model_argument="/data/models/m",
        served_names=("m",),
        layout=layout,
        host="10.0.0.1",
        shape=entry.shape if entry else None,
        entry=entry,
        defaults=accelerator_named("cpu" if cpu else "nvidia").defaults,
        version=version,
        limits=limits,
        random_weights=random_weights,
    )
