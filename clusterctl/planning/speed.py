"""Estimate the speed of layouts in order to rank them; the tokens/s are not guaranteed.

The given number of requests is in flight at once, and each answered request is followed by another.
The prompts of all of them are prefilled in passes of `batched` tokens, and they decode in step. A
round, in which each has one answer, takes

    prefill of all their prompts + OUTPUT - 1 decode steps + FIRST_TOKEN + ANSWER
    + API_OVERHEAD for each request

A decode step and a pass of the prefill take, on every stage,

    STAGE_OVERHEAD + operations of the layers x OPERATION + GROUP_OVERHEAD with tensor parallelism
    + the larger of reading the weights and computing with them
    + 2 all-reduces per layer of (tokens x hidden x 2 bytes) when the group is larger than one

and a decode step in addition

    requests x REQUEST_OVERHEAD + reading the KV cache + what replicas add

The head is computed for tokens that are sampled, not for those of prompts. PP adds one hop per
stage boundary. An all-reduce or a hop of `n` bytes takes `latency + n / bandwidth` of the link.
Stages take turns: a step of all requests takes as many passes as there are stages, each with its
share; only reading weights overlaps between stages.

In the first round all prompts arrive at once and are prefilled pass by pass. Later, requests whose
prompts shared a pass end together, so that the next prompts arrive in such groups: each waits for
half of the current pass, if it has prompts, and for its own.

Without CUDA graphs (--enforce-eager) the host launches every operation of a layer while the GPU
computes those before: a step takes at least that long. Weights that --cpu-offload-gb leaves in the
host's memory are read over PCIe in each step, in addition.

docs/fit.md explains how the constants were fitted and how far off they are;
tests/unit/planning/test_speed_of_layouts.py checks.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from clusterctl.errors import UsageError
from clusterctl.models.shape import DecoderLayer, ModelShape, Quantization
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.kv_cache import attention_bytes
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.placement import Placement, stages_of
from clusterctl.planning.weights import PipelineStage, WeightsRead, weight_bytes, weights_read
from clusterctl.units import GIB

# Seconds of a step in each stage, for each operation of its layers and for each request: on an H200
# a token of a 1.5B model of 28 layers, which have 11 operations each, took 2.2 ms, 0.76 of which is
# reading weights.
_STAGE_OVERHEAD = 0.9e-3
_OPERATION = 1.8e-6
_REQUEST_OVERHEAD = 6e-6
# The ranks of a group are processes that wait for each other.
_GROUP_OVERHEAD = 0.6e-3
# Replicas disturb each other: each has one of these for every replica of the service, or half of it
# at this many requests. Hosts differ by a factor of two in it.
_REPLICA_OVERHEAD = 1.0e-3
_HALF_AT_REQUESTS = 45
# For each request: parsing, tokens to text and the answer, in the API server of its replica; half
# of it comes before the first token.
_API_OVERHEAD = 0.85e-3
# The way of a request to the engine and of an answer to the client: on an H200 the first token of a
# 32B came 5 ms later than the pass of its prompt takes, and a round of one request took 2 to 6 ms
# longer than the server counted.
_FIRST_TOKEN_OVERHEAD = 5e-3
_ANSWER_OVERHEAD = 3e-3

# Seconds to launch an operation without CUDA graphs, with vLLM's Python around it: 63 us by Gemma 4
# 26B on an A100 (vLLM 0.19.0, 54 ms a token), 70 us by Qwen2.5-Omni-7B on an A800 (0.29,
# vllm-omni#7960, 22 to 23 ms). Hosts differ by a factor of two in it.
_LAUNCH = 65e-6

# Share of PCIe's data rate that copies from pinned memory reach: 11.3 of 15.75 GB/s on a 2080 Ti.
_PCIE_SHARE = 0.72

# Shares of the data sheet that matrix kernels reach
_BANDWIDTH_SHARE = 0.85
_COMPUTE_SHARE = 0.65
# Those of vLLM's Triton kernels for experts, by vllm#44818: on an H200, 128 bf16 experts of 704 x
# 2816, 8 of them a token, took 392 us with 64 tokens and 420 with 256, which is 0.80 and 0.76 of
# the bandwidth. 4096 tokens took 1,250 us and each beyond 2048 0.25, so 8192 take 2.3 ms. A tuned
# configuration made 2 % of difference.
_EXPERTS_BANDWIDTH_SHARE = 0.78
_EXPERTS_COMPUTE_SHARE = 0.35

REQUESTS = (1, 64, 256)
PROMPT = 256
OUTPUT = 128  # Tokens of the requests in the estimate, as in the measurements
_BATCHED = 8192  # --max-num-batched-tokens of GPUs with much memory
_ROUNDS = 4  # As many requests for each place as `clusterctl bench` sends


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Bandwidth in bytes/s and latency in seconds of a transfer between two ranks."""

    bandwidth: float
    latency: float


NVLINK = LinkSpeed(200e9, 6e-6)  # Custom all-reduce over NVLink 4
PCIE = LinkSpeed(12e9, 15e-6)  # NCCL through host memory, GeForce cards without peer access
SOCKET_LATENCY = 40e-6
# An all-reduce between hosts in a CUDA graph over the small one that the fabric gate times; with
# several ranks on a host it has more hops. Larger ones leave NCCL's fast path for small messages,
# which costs up to 6 times the latency: half of it at 80 kB.
_IN_A_GRAPH = 0.85
_SEVERAL_ON_A_HOST = 1.7
_LARGE_MESSAGE = 6.0
_HALF_AT_BYTES = 80e3
# NCCL over TCP sockets: 4.0 GB/s measured on a 4 GB/s link, and 40 us for a small message.
NETWORK = LinkSpeed(4e9, SOCKET_LATENCY)

_DEFAULTS = ServeOptions()

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
class Load:
    """The speed with `requests` at once: output tokens/s of all replicas, and the mean seconds to
    the first token of a request and for each further one."""

    requests: int
    tokens_per_s: float
    first_token: float
    token: float


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed with 1, 64 and 256 concurrent requests, of 256 tokens in and 128 out."""

    loads: tuple[Load, ...]  # Empty: not estimated

    @property
    def alone(self) -> float:
        """Output tokens/s with one request; 0 if not estimated."""
        return self.loads[0].tokens_per_s if self.loads else 0.0

    @property
    def loaded(self) -> float:
        """Output tokens/s with 64 requests; 0 if not estimated."""
        return self.loads[1].tokens_per_s if self.loads else 0.0

    def to_json(self) -> dict[str, float]:
        found = {}
        for load in self.loads:
            found[f"tokens_per_s_{load.requests}"] = round(load.tokens_per_s, 1)
            found[f"first_token_ms_{load.requests}"] = round(load.first_token * 1e3, 1)
            found[f"token_ms_{load.requests}"] = round(load.token * 1e3, 2)
        return found


def speed_of(
    shape: ModelShape,
    placement: Placement,
    quantization: Quantization | None = None,
    network: LinkSpeed = NETWORK,
    options: ServeOptions = _DEFAULTS,
    batched: int = _BATCHED,
) -> Speed:
    """Estimate the speed of all replicas together. `network` is the link between the hosts."""
    run = SpeedModel(shape, placement, quantization, network, options, batched=batched)
    return Speed(tuple(run.load(requests) for requests in REQUESTS))


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """Times of a model on its ranks.

    `prompt`: tokens of a prompt that are prefilled, besides those that are `cached` as a prefix.
    `batched`: tokens of a pass, --max-num-batched-tokens. `rounds`: how many requests follow each
    other in each place.
    """

    shape: ModelShape
    placement: Placement
    quantization: Quantization | None
    network: LinkSpeed
    options: ServeOptions = _DEFAULTS
    prompt: int = PROMPT
    cached: int = 0
    output: int = OUTPUT
    batched: int = _BATCHED
    rounds: float = _ROUNDS

    def load(self, requests: int) -> Load:
        """Return the speed with `requests` concurrent requests. Those beyond --max-num-seqs wait
        for earlier ones."""
        replicas = min(self.placement.replicas, requests)
        each = requests // replicas
        if 0 < (most := self.options.max_num_seqs or 0) < each:
            full = replace(self, rounds=self.rounds * each / most).load(most * replicas)
            later = (each - most) * replicas * self.output / full.tokens_per_s
            # In the first round half as long on average: for none to all of those beyond
            waits = later * (self.rounds - 0.5) / self.rounds
            return replace(full, requests=requests, first_token=full.first_token + waits)
        turns = min(self.placement.pp, each)
        step = turns * self._step(each // turns, turns, each)
        passes = max(1, math.ceil(each * self.prompt / self.batched))
        prefill = self._prefill(each * self.prompt, passes)
        first_round = prefill * (passes + 1) / (2 * passes)
        later = prefill / passes * (1 + (passes - 1) / (2 * passes))
        waits = (first_round + (self.rounds - 1) * later) / self.rounds
        api = each * _API_OVERHEAD
        took = prefill + (self.output - 1) * step + _FIRST_TOKEN_OVERHEAD + _ANSWER_OVERHEAD + api
        return Load(
            requests=requests,
            tokens_per_s=replicas * each * self.output / took,
            first_token=_FIRST_TOKEN_OVERHEAD + api / 2 + waits,
            token=step + (prefill - waits) / self.output,
        )

    def _step(self, at_once: int, turns: int, each: int) -> float:
        """Return the seconds of a pass of `at_once` requests through all stages."""
        step = busy = 0.0
        for stage, gpu in self.stages():
            work = self._work(stage, gpu, at_once, sampled=at_once)
            # Stages that take turns overlap in this.
            busy = max(busy, work) if turns > 1 else busy + work
            beside = self._cache(stage, gpu, at_once) + self._reduce(stage, at_once)
            beside += self.offload(stage, gpu, at_once)
            step += max(self._operating(stage), self.launches(stage) - work - beside) + beside
            step += self._fixed() + at_once * _REQUEST_OVERHEAD + self._hop(stage, at_once)
            if self.placement.replicas > 1 and each > 1:
                share = each / (each + _HALF_AT_REQUESTS)
                step += _REPLICA_OVERHEAD * self.placement.replicas * share
        return step + busy

    def _prefill(self, tokens: int, passes: int) -> float:
        """Return the seconds to prefill prompts in that many passes, pipelined through the
        stages."""
        size = math.ceil(tokens / passes)
        slowest = first = hops = 0.0
        for stage, gpu in self.stages():
            work = self._work(stage, gpu, size, sampled=0) + self._operating(stage)
            work = max(work, self.launches(stage)) + self._fixed()
            work += self._reduce(stage, size) + self.offload(stage, gpu, size)
            slowest, first = max(slowest, work), first + work
            hops += self._hop(stage, size)
        return first + (passes - 1) * slowest + passes * hops

    def stages(self) -> list[tuple[PipelineStage, GpuModel]]:
        """Return every stage with its slowest GPU."""
        found = []
        for index, stage in enumerate(stages_of(len(self.shape.layers), self.placement)):
            gpus = [seat.gpu for seat in self.placement.seats if seat.stage == index]
            found.append((stage, min(gpus, key=lambda gpu: gpu.bandwidth)))
        return found

    def launches(self, stage: PipelineStage) -> float:
        """Return the seconds to launch a pass of a stage; 0 with CUDA graphs."""
        if not self.options.enforce_eager:
            return 0.0
        layers = self.shape.layers[stage.first : stage.last]
        return sum(_operations(layer, stage.tp) for layer in layers) * _LAUNCH

    def offloaded(self, stage: PipelineStage) -> int:
        """Return the bytes of weights that a rank leaves in the host's memory."""
        wanted, replicas = int(self.options.cpu_offload_gib * GIB), self.options.dp or 1
        on_gpu, all_on_gpu = (
            weight_bytes(
                self.shape,
                stage,
                self.quantization,
                moved,
                replicas=replicas,
                by_number=self.options.expert_parallel,
            )
            for moved in (wanted, 0)
        )
        return all_on_gpu - on_gpu

    def offload(self, stage: PipelineStage, gpu: GpuModel, tokens: int) -> float:
        """Return the seconds to read offloaded weights for a pass of `tokens`: only chosen experts,
        as on the GPU."""
        if not self.options.cpu_offload_gib:
            return 0.0
        share = self._read(stage, tokens).total / self._read(stage, _BATCHED).total
        return share * self.offloaded(stage) / (gpu.pcie * 1e9 * _PCIE_SHARE)

    def _fixed(self) -> float:
        return _STAGE_OVERHEAD + (_GROUP_OVERHEAD if self.placement.tp > 1 else 0.0)

    def _operating(self, stage: PipelineStage) -> float:
        """Return the fixed cost, in seconds, of the operations in a stage's layers. All-reduces are
        counted separately."""
        layers = self.shape.layers[stage.first : stage.last]
        return sum(_operations(layer, 1) for layer in layers) * _OPERATION

    def _read(self, stage: PipelineStage, tokens: int) -> WeightsRead:
        return weights_read(self.shape, stage, self.quantization, tokens)

    def _work(self, stage: PipelineStage, gpu: GpuModel, tokens: int, *, sampled: int) -> float:
        """Return the seconds to read the weights or to compute with them, whichever is longer: 2
        operations per weight (of 2 bytes) and token. Kernels compute with quantized weights at the
        same speed, but with fp8 twice as fast on GPUs that support it."""
        read, one = self._read(stage, tokens), weights_read(self.shape, stage, None, 1)
        faster = gpu.has_native_fp8 and self.quantization and self.quantization.method == "fp8"
        rest = (read.layers + read.head) / _BANDWIDTH_SHARE
        reading = (rest + read.experts / _EXPERTS_BANDWIDTH_SHARE) / (gpu.bandwidth * 1e9)
        layers = one.layers / _COMPUTE_SHARE + one.experts / _EXPERTS_COMPUTE_SHARE
        computing = tokens * layers / (2 if faster else 1) + sampled * one.head / _COMPUTE_SHARE
        return max(reading, computing / (gpu.tflops * 1e12))

    def _cache(self, stage: PipelineStage, gpu: GpuModel, requests: int) -> float:
        """Return the seconds to read the KV cache of these requests, with half of their answers."""
        layers = self.shape.layers[stage.first : stage.last]
        element = self.options.cache_element_bytes(self.shape.cache_dtype)
        kept = (layer.attention for layer in layers if layer.attention)
        token = sum(
            attention_bytes(attention, stage.tp, element)
            for attention in kept
            if not attention.shares_cache
        )
        context = self.cached + self.prompt + self.output / 2
        return requests * context * token / (gpu.bandwidth * 1e9 * _BANDWIDTH_SHARE)

    def _reduce(self, stage: PipelineStage, tokens: int) -> float:
        """Return the seconds of all-reduces: two per layer, one for the embedding."""
        tp = self.placement.tp
        if tp == 1:
            return 0.0
        count = 2 * (stage.last - stage.first) + (1 if stage.has_embedding else 0)
        size = tokens * self.shape.hidden * 2
        fabric = self.placement.fabric
        if fabric != "network":
            link = _BY_FABRIC[fabric]
            return count * (link.latency + 2 * (tp - 1) / tp * size / link.bandwidth)
        # Only hosts exchange over the network: a host's ranks add up inside it first.
        seats = self.placement.seats
        hosts = len({seat.host for seat in seats if seat.stage == seats[0].stage})
        factor = _IN_A_GRAPH * (_SEVERAL_ON_A_HOST if tp > hosts else 1.0)
        factor += _LARGE_MESSAGE * size / (size + _HALF_AT_BYTES)
        message = 2 * (hosts - 1) / hosts * size
        return count * (self.network.latency * factor + message / self.network.bandwidth)

    def _hop(self, stage: PipelineStage, tokens: int) -> float:
        """Return the seconds to send hidden states and residual to the next stage."""
        if stage.has_head:
            return 0.0
        link = self.network if self.placement.stages_cross_hosts else PCIE
        return link.latency + 2 * tokens * self.shape.hidden * 2 / link.bandwidth


def _operations(layer: DecoderLayer, tp: int) -> int:
    """Return about how many operations vLLM launches for a layer: one for each norm and projection,
    six for attention (rotation, an empty result, cache and attention itself among them), nine for
    experts (router, top-k, alignment, two products, activation and sum among them)."""
    count = layer.norms + (2 if tp > 1 else 0)
    if layer.attention:
        count += 6 + (2 if layer.attention.qk_norm else 0) + (4 if layer.attention.latent else 0)
    return count + (3 if layer.mlp else 0) + (9 if layer.experts else 0)
