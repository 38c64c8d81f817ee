"""A model that is to be served on two hosts, for tests of what vLLM is told."""

from __future__ import annotations

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.models.catalogue import by_alias
from clusterctl.models.version import Version
from clusterctl.serving.arguments import Launch
from clusterctl.serving.config_file import parse_config
from clusterctl.serving.layout import HostGpus, Layout, plan_layout
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments

PAIR = (HostGpus("gpu1", 1), HostGpus("gpu2", 1))
TWO = plan_layout(None, PAIR, tensor_parallel=2)
ONE = plan_layout(None, PAIR, tensor_parallel=1)


def launch(
    *extra: str,
    layout: Layout = TWO,
    config: str = "",
    alias: str | None = None,
    cpu: bool = False,
    version: Version | None = (0, 33, 0),
    gpu: int | None = None,
    random_weights: bool = False,
) -> Launch:
    request = read_request(
        Options("m"), parse_config(config, "config.yaml"), parse_arguments(extra)
    )
    return Launch(
        request=request,
        model_argument="/data/models/m",
        served_names=("m",),
        layout=layout,
        host="10.0.0.1",
        entry=by_alias(alias) if alias else None,
        defaults=accelerator_named("cpu" if cpu else "nvidia").defaults,
        version=version,
        smallest_gpu=gpu,
        random_weights=random_weights,
    )
