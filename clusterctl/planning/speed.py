"""Estimate the speed of layouts in order to rank them; the tokens/s are not guaranteed.

A request costs a prefill (compute bound) and then decode steps. A step costs, on every stage:

    STAGE_OVERHEAD + layers x LAYER_OVERHEAD + requests x REQUEST_OVERHEAD
    + weights read / memory bandwidth
    + 2 all-reduces per layer of (tokens x hidden x 2 bytes) when the group is larger than one

and PP adds one hop per stage boundary. An all-reduce or a hop of `n` bytes takes `latency + n /
bandwidth` of the link. Stages take turns: a step of all requests takes as many passes as there are
stages, each with its share; only reading weights overlaps between stages. Compared with measured
rows in tests/unit/planning/test_speed_of_layouts.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.errors import UsageError
from clusterctl.models.shape import ModelShape, Quantization
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.placement import Placement, stages_of
from clusterctl.planning.weights import PipelineStage, read_per_token_bytes

# Seconds that a decode step takes besides reading weights, in each stage and for each of its
# layers: on an H200 a token of a 1.5B model of 28 layers took 2.2 ms, 0.76 of which is reading, one
# of a 32B model of 64 layers 18.1 ms, 16.1 of which is reading.
_STAGE_OVERHEAD = 0.95e-3
_LAYER_OVERHEAD = 17e-6
# Seconds for each request in a step: scheduling, attention to its context, sampling, the answer.
_REQUEST_OVERHEAD = 12e-6

_BANDWIDTH_SHARE = 0.85
_COMPUTE_SHARE = 0.45  # Share of the data sheet that large decode and prefill kernels reach

SMALL_BATCH = 1
LARGE_BATCH = 64
PROMPT = 256
OUTPUT = 128  # Tokens of the requests in the estimate, as in the measurements


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Bandwidth in bytes/s and latency in seconds of a transfer between two ranks."""

    bandwidth: float
    latency: float


NVLINK = LinkSpeed(200e9, 6e-6)  # Custom all-reduce over NVLink 4
PCIE = LinkSpeed(12e9, 15e-6)  # NCCL through host memory, GeForce cards without peer access
SOCKET_LATENCY = 40e-6
# Factor of an all-reduce between hosts over the small one that the fabric gate times: it has more
# bytes, and its ranks are not in step. Twice as long with four ranks.
_IN_A_STEP = 1.35
# NCCL over TCP sockets: 4.0 GB/s measured on a 4 GB/s link, and 40 us for a small message.
NETWORK = LinkSpeed(4e9, SOCKET_LATENCY)

_RATE = re.compile(r"^(\d{1,5}(?:\.\d{1,3})?)\s*(gbit(?:/s)?|gbps|gb/s|g)$", re.IGNORECASE)

_BY_FABRIC = {"nvlink": NVLINK, "pcie": PCIE}


def parse_network(text: str) -> LinkSpeed:
    """Parse `25Gbit` (bits per second) or `4GB/s` (bytes). Raises UsageError."""
    match = _RATE.match(text.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(
            f"--network {text!r} is not a speed", hint="--network 25Gbit, or in bytes: 4GB/s"
        )
    bits = 1 if match[2] in ("GB/s", "gB/s") else 8
    return LinkSpeed(float(match[1]) * 1e9 / bits, SOCKET_LATENCY)


@dataclass(frozen=True, slots=True)
class Speed:
    """Output tokens/s with 1 and with 64 concurrent requests, of 256 tokens in and 128 out."""

    alone: float
    loaded: float

    def to_json(self) -> dict[str, float]:
        return {"tokens_per_s_1": round(self.alone, 1), "tokens_per_s_64": round(self.loaded, 1)}


def speed_of(
    shape: ModelShape,
    placement: Placement,
    quantization: Quantization | None = None,
    network: LinkSpeed = NETWORK,
) -> Speed:
    """Estimate the speed of all replicas together. `network` is the link between the hosts."""
    run = _SpeedModel(shape, placement, quantization, network)
    return Speed(alone=run.throughput(SMALL_BATCH), loaded=run.throughput(LARGE_BATCH))


@dataclass(frozen=True, slots=True)
class _SpeedModel:
    """Times of a model on its ranks."""

    shape: ModelShape
    placement: Placement
    quantization: Quantization | None
    network: LinkSpeed

    def throughput(self, requests: int) -> float:
        """Return the output tokens per second of `requests` concurrent requests."""
        replicas = min(self.placement.replicas, requests)
        each = requests // replicas
        turns = min(self.placement.pp, each)
        # Seconds of a step, which passes through all stages, and of a prefill, in which stages
        # process different prompts at once. Stages that take turns overlap in reading weights.
        step = reading = prefill = hops = 0.0
        at_once, prompts = each // turns, each * PROMPT
        for stage, gpu in self._stages():
            read = self._read(stage, at_once) / (gpu.bandwidth * 1e9 * _BANDWIDTH_SHARE)
            reading = max(reading, read) if turns > 1 else reading + read
            step += _STAGE_OVERHEAD + (stage.last - stage.first) * _LAYER_OVERHEAD
            step += at_once * _REQUEST_OVERHEAD
            step += self._reduce(stage, at_once) + self._hop(stage, at_once)
            flops = self._read(stage, 1) * prompts  # 2 flops per weight, which has 2 bytes
            busy = flops / (gpu.tflops * 1e12 * _COMPUTE_SHARE)
            prefill = max(prefill, busy + self._reduce(stage, prompts))
            hops += self._hop(stage, prompts)
        seconds = prefill + hops + OUTPUT * turns * (step + reading)
        return replicas * each * OUTPUT / seconds

    def _stages(self) -> list[tuple[PipelineStage, GpuModel]]:
        """Return every stage with its slowest GPU."""
        found = []
        for index, stage in enumerate(stages_of(len(self.shape.layers), self.placement)):
            gpus = [seat.gpu for seat in self.placement.seats if seat.stage == index]
            found.append((stage, min(gpus, key=lambda gpu: gpu.bandwidth)))
        return found

    def _read(self, stage: PipelineStage, tokens: int) -> float:
        return read_per_token_bytes(self.shape, stage, self.quantization, tokens)

    def _reduce(self, stage: PipelineStage, tokens: int) -> float:
        """Return the seconds of all-reduces: two per layer, one for the embedding."""
        tp = self.placement.tp
        if tp == 1:
            return 0.0
        fabric = self.placement.fabric
        link = self.network if fabric == "network" else _BY_FABRIC[fabric]
        count = 2 * (stage.last - stage.first) + (1 if stage.has_embedding else 0)
        turns = 2 * (tp - 1) / tp
        latency = link.latency * (_IN_A_STEP * turns if fabric == "network" else 1.0)
        message = turns * tokens * self.shape.hidden * 2
        return count * (latency + message / link.bandwidth)

    def _hop(self, stage: PipelineStage, tokens: int) -> float:
        """Return the seconds to send hidden states and residual to the next stage."""
        if stage.has_head:
            return 0.0
        link = self.network if self.placement.stages_cross_hosts else PCIE
        return link.latency + 2 * tokens * self.shape.hidden * 2 / link.bandwidth
