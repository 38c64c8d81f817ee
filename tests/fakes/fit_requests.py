"""A plan from a few words, with only the flags that a test names: logs of others have no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterctl.planning.fit_request import load_shape
from clusterctl.planning.placement import Site, sites_of
from clusterctl.planning.planner import plan
from clusterctl.planning.report import FitReport, Hardware, PlanRequest
from clusterctl.planning.speed import NETWORK, LinkSpeed
from clusterctl.serving.vllm_flags import parse_arguments


def fit_request(
    model: str | Path,
    *,
    gpus: str | None = None,
    hosts: int = 1,
    sites: Sequence[Site] = (),
    tp: int | None = None,
    pp: int | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    vllm: str | None = None,
    network: LinkSpeed = NETWORK,
) -> FitReport:
    """`gpus`: those of each of `hosts` hosts ("2xH200"); without it `sites` are the cluster's."""
    found = tuple(sites) if gpus is None else sites_of(gpus, hosts)
    hardware = Hardware(found, network, env=env or {}, vllm=vllm)
    return plan(PlanRequest(load_shape(model), hardware, tp, pp, parse_arguments(args)))
