"""Flags that were added or removed between vLLM releases, so that a start that must fail is refused
before anything is stopped for it.

Found by reading the argument definitions of 0.7.2, 0.8.5.post1, 0.9.2, 0.10.2, 0.11.2, 0.12.0,
0.15.1, 0.17.1, 0.18.0, 0.19.0, 0.20.0, 0.25.1, 0.29.0 and 0.33.0. `absent_from` is the first of
these without the flag: a release in between may lack it already, and then vLLM itself refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from clusterctl.errors import UsageError
from clusterctl.models.version import Version, show_version
from clusterctl.serving.vllm_flags import Argument, parse_arguments

SHUTDOWN_TIMEOUT_SINCE: Version = (0, 18, 0)  # --shutdown-timeout (vllm#34730)

DATA_PARALLEL_BACKEND_SINCE: Version = (0, 9, 2)

# The package of 0.28.0 has neither the quantisation nor its loader; 0.27.1 has both
BITSANDBYTES_ABSENT_FROM: Version = (0, 28, 0)


@dataclass(frozen=True)
class Removed:
    """A flag, or one value of it, that newer releases refuse."""

    name: str
    absent_from: Version
    instead: str  # Hint for the user
    value: str | None = None

    def matches(self, argument: Argument, version: Version) -> bool:
        if argument.key != self.name or version < self.absent_from:
            return False
        return self.value is None or self.value in argument.values


_DROP = "leave it out"

REMOVED: tuple[Removed, ...] = (
    Removed("swap-space", (0, 18, 0), "leave it out: it had no effect since 0.8 (vllm#27984)"),
    Removed("max-seq-len-to-capture", (0, 11, 2), "leave it out (vllm#25543)"),
    Removed("disable-log-requests", (0, 17, 1), "leave it out: requests are not logged by default"),
    Removed("enable-reasoning", (0, 10, 2), "leave it out: --reasoning-parser alone is enough"),
    Removed("use-v2-block-manager", (0, 10, 2), _DROP),
    Removed("worker-use-ray", (0, 7, 2), "leave it out: clusterctl asks for Ray itself"),
    Removed("engine-use-ray", (0, 7, 2), _DROP),
    Removed("device", (0, 10, 2), "leave it out: vLLM finds the device"),
    Removed("num-scheduler-steps", (0, 10, 2), _DROP),
    Removed("multi-step-stream-outputs", (0, 10, 2), _DROP),
    Removed("num-lookahead-slots", (0, 12, 0), _DROP),
    Removed("preemption-mode", (0, 11, 2), _DROP),
    Removed("guided-decoding-backend", (0, 12, 0), "use --structured-outputs-config"),
    Removed("task", (0, 15, 1), "use --runner and --convert"),
    Removed("rope-scaling", (0, 11, 2), "use --hf-overrides with rope_parameters"),
    Removed("rope-theta", (0, 11, 2), "use --hf-overrides with rope_parameters"),
    Removed("cuda-graph-sizes", (0, 15, 1), "use --cudagraph-capture-sizes"),
    Removed("speculative-model", (0, 8, 5), "use --speculative-config"),
    Removed("calculate-kv-scales", (0, 29, 0), _DROP),
    Removed("disable-frontend-multiprocessing", (0, 20, 0), _DROP),
    Removed(
        "quantization",
        BITSANDBYTES_ABSENT_FROM,
        "use a model quantised as AWQ, GPTQ or FP8, or an image of an older vLLM",
        value="bitsandbytes",
    ),
)


# Flags by the first of the releases read that has them; 0.15.1 was not read for this.
_NEW_FLAGS: dict[Version, str] = {
    (0, 7, 2): """
        allow-credentials allowed-headers allowed-local-media-path allowed-methods allowed-origins
        api-key block-size calculate-kv-scales chat-template chat-template-content-format
        code-revision collect-detailed-traces compilation-config config-format cpu-offload-gb device
        disable-async-output-proc disable-custom-all-reduce disable-fastapi-docs
        disable-frontend-multiprocessing disable-log-requests disable-log-stats
        disable-logprobs-during-spec-decoding disable-mm-preprocessor-cache disable-sliding-window
        distributed-executor-backend download-dir dtype enable-auto-tool-choice
        enable-chunked-prefill enable-lora enable-lora-bias enable-prefix-caching
        enable-prompt-adapter enable-prompt-tokens-details enable-reasoning
        enable-request-id-headers enable-sleep-mode enforce-eager fully-sharded-loras
        generation-config gpu-memory-utilization guided-decoding-backend hf-overrides host
        ignore-patterns kv-cache-dtype kv-transfer-config limit-mm-per-prompt load-format
        logits-processor-pattern long-lora-scaling-factors lora-dtype lora-extra-vocab-size
        lora-modules max-cpu-loras max-log-len max-logprobs max-lora-rank max-loras max-model-len
        max-num-batched-tokens max-num-seqs max-parallel-loading-workers max-prompt-adapter-token
        max-prompt-adapters max-seq-len-to-capture middleware mm-processor-kwargs model model-impl
        model-loader-extra-config multi-step-stream-outputs ngram-prompt-lookup-max
        ngram-prompt-lookup-min num-gpu-blocks-override num-lookahead-slots num-scheduler-steps
        num-speculative-tokens otlp-traces-endpoint override-generation-config
        override-neuron-config override-pooler-config pipeline-parallel-size port preemption-mode
        prompt-adapters qlora-adapter-name-or-path quantization ray-workers-use-nsight
        reasoning-parser response-role return-tokens-as-token-ids revision root-path rope-scaling
        rope-theta scheduler-delay-factor scheduling-policy seed served-model-name
        skip-tokenizer-init spec-decoding-acceptance-method speculative-disable-by-batch-size
        speculative-disable-mqa-scorer speculative-draft-tensor-parallel-size
        speculative-max-model-len speculative-model speculative-model-quantization ssl-ca-certs
        ssl-cert-reqs ssl-certfile ssl-keyfile swap-space task tensor-parallel-size tokenizer
        tokenizer-mode tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type
        tokenizer-revision tool-call-parser tool-parser-plugin trust-remote-code
        typical-acceptance-sampler-posterior-alpha typical-acceptance-sampler-posterior-threshold
        use-v2-block-manager uvicorn-log-level worker-cls
    """,
    (0, 8, 5): """
        additional-config config data-parallel-size disable-cascade-attn disable-chunked-mm-input
        disable-uvicorn-access-log enable-expert-parallel enable-server-load-tracking
        enable-ssl-refresh hf-config-path hf-token long-prefill-token-threshold
        max-long-partial-prefills max-num-partial-prefills prefix-caching-hash-algo scheduler-cls
        show-hidden-metrics-for-version speculative-config use-tqdm-on-load worker-extension-cls
    """,
    (0, 9, 2): """
        api-server-count cuda-graph-sizes data-parallel-address data-parallel-backend
        data-parallel-rank data-parallel-rpc-port data-parallel-size-local data-parallel-start-rank
        disable-hybrid-kv-cache-manager enable-eplb enable-force-include-usage
        enable-multimodal-encoder-data-parallel enable-prompt-embeds eplb-log-balancedness
        eplb-step-interval eplb-window-size expand-tools-even-if-tool-choice-none
        guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
        guided-decoding-disable-fallback headless kv-events-config log-config-file media-io-kwargs
        num-redundant-experts override-attention-dtype pt-load-map-location
    """,
    (0, 10, 2): """
        async-scheduling convert data-parallel-hybrid-lb decode-context-parallel-size
        default-mm-loras enable-log-outputs enable-log-requests enable-tokenizer-info-endpoint
        eplb-config exclude-tools-when-tool-choice-none h11-max-header-count
        h11-max-incomplete-event-size interleave-mm-strings io-processor-plugin
        kv-cache-memory-bytes kv-sharing-fast-prefill log-error-stack logits-processors
        logprobs-mode mamba-cache-dtype mamba-ssm-cache-dtype mm-encoder-tp-mode
        mm-processor-cache-gb runner safetensors-load-strategy skip-mm-profiling tool-server uds
    """,
    (0, 11, 2): """
        aggregate-engine-logging all2all-backend allowed-media-domains cudagraph-capture-sizes
        data-parallel-external-lb dbo-decode-token-threshold dbo-prefill-token-threshold
        dcp-kv-cache-interleave-size disable-nccl-for-dp-synchronization ec-transfer-config
        enable-dbo enable-mm-embeds expert-placement-strategy kv-offloading-backend
        kv-offloading-size mamba-block-size master-addr master-port max-cudagraph-capture-size
        mm-encoder-attn-backend mm-processor-cache-type mm-shm-cache-max-object-size-mb nnodes
        node-rank pooler-config reasoning-parser-plugin stream-interval structured-outputs-config
        tokens-only trust-request-chat-template video-pruning-rate
    """,
    (0, 12, 0): """
        cp-kv-cache-interleave-size kv-cache-metrics kv-cache-metrics-sample optimization-level
        prefill-context-parallel-size
    """,
    (0, 17, 1): """
        allow-deprecated-quantization attention-backend attention-config cpu-offload-params
        cudagraph-metrics default-chat-template-kwargs disable-access-log-for-endpoints
        enable-elastic-ep enable-flashinfer-autotune enable-layerwise-nvtx-tracing enable-log-deltas
        enable-logging-iteration-details enable-mfu-metrics enable-offline-docs
        enable-return-routed-experts enable-tower-connector-lora fail-on-environ-validation
        kernel-config language-model-only mamba-cache-mode mm-encoder-only moe-backend
        offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step
        performance-mode profiler-config specialize-active-lora ssl-ciphers ubatch-size
        use-gpu-for-pooling-score weight-transfer-config
    """,
    (0, 18, 0): """
        dcp-comm-backend distributed-timeout-seconds enable-ep-weight-filter gdn-prefill-backend
        grpc shutdown-timeout
    """,
    (0, 19, 0): """
        kv-cache-dtype-skip-layers lora-target-modules mm-tensor-ipc reasoning-config
        renderer-num-workers scheduler-reserve-full-isl
    """,
    (0, 20, 0): """
        enable-flash-late-interaction enable-mamba-cache-stochastic-rounding ir-op-priority
        mamba-backend mamba-cache-philox-rounds numa-bind numa-bind-cpus numa-bind-nodes
    """,
    (0, 25, 1): """
        cpu-distributed-timeout-seconds data-parallel-multi-port-external-lb
        data-parallel-supervisor-port device-ids diffusion-config
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
        dp-supervisor-probe-timeout-s enable-cumem-allocator enable-mixed-moe-lora-format
        enable-per-request-metrics fingerprint-mode fingerprint-value jit-monitor-mode
        jit-monitor-verbose linear-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
        mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-ipc-gpu-memory-gb
        model-class-overrides prefill-schedule-interval quantization-config
        safetensors-prefetch-block-size safetensors-prefetch-num-threads spec-method spec-model
        spec-tokens use-fp64-gumbel watermark
    """,
    (0, 29, 0): """
        cohere-format cohere-is-reasoning-model dcp-q-replicate ec-manager-config
        enable-batch-sharded-sampling enable-bf16x3-router-gemm enable-fault-tolerance
        enable-moe-shared-loras enable-trace-replay fault-tolerance-config kda-prefill-backend
        mamba-ssu-algorithm max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens
        mm-device-do-normalize mm-hasher-algorithm mm-processor-device
        per-request-spec-decode-metrics prefix-cache-retention-interval prefix-match-unit
        replayssm-buffer-len return-sampling-mask sse-keep-alive-interval use-replayssm
        video-pruning-method
    """,
    (0, 33, 0): """
        anthropic-disabled-thinking-effort aux-output-config custom-histogram-buckets
        device-memory-utilization dp-sync-interval elastic-ep-max-dp-size enable-hc-sp
        enable-mamba-shared-prefix-checkpoint enable-nccl-comm-suspend enable-scale-out
        enable-shm-tensor-arena engram-config grpc-port kda-decode-backend log-level logging-config
        long-prefill-token-threshold-adaptive max-lora-cls-labels max-num-active-seqs monokernel
        reasoning-effort-map sleep-mode-backend sleep-mode-offload-cudagraph
        sleep-preserve-parameter-names sparse-indexer-topk-backend swa-bounded-replay
        tool-strict-level trust-request-mm-kwargs watchdog-config watermark-config
    """,
}
FIRST_RELEASE = {name: release for release, names in _NEW_FLAGS.items() for name in names.split()}


def is_vllm_flag(word: str) -> bool:
    """Return whether `word` of a command line is a flag that some release of vLLM has."""
    argument = parse_arguments((word,))[0]
    return argument.key in FIRST_RELEASE or any(argument.key == one.name for one in REMOVED)


def refused_flags(arguments: Iterable[Argument], version: Version | None) -> list[UsageError]:
    """Return an error for each argument that this vLLM is known to refuse; none if its version is
    unknown. A flag that no release has is left to vLLM, since its image may be of a fork, unless it
    looks like a misspelling."""
    if version is None:
        return []
    errors = []
    for argument in arguments:
        name, flag = argument.key, argument.flag
        removed = next((one for one in REMOVED if one.matches(argument, version)), None)
        first = FIRST_RELEASE.get(name)
        hint: str | None = None
        if removed:
            flag, hint = " ".join(filter(None, (flag, removed.value))), removed.instead
        elif first:
            # A release between two of those that were read may have the flag already.
            lacking = max((release for release in _NEW_FLAGS if release < first), default=None)
            if lacking and version <= lacking:
                hint = f"leave it out, or use an image of vLLM {show_version(first)} or newer"
        elif version <= max(_NEW_FLAGS) and not name.startswith("-"):
            # argparse accepts the beginning of a flag in place of the flag.
            begun = any(known.startswith(name) for known in FIRST_RELEASE)
            near = () if begun else get_close_matches(name, FIRST_RELEASE, n=1, cutoff=0.85)
            hint = "".join(f"did you mean --{known}?" for known in near) or None
        if hint:
            text = f"{flag} ({argument.origin}) does not exist in vLLM {show_version(version)}"
            errors.append(UsageError(text, hint=hint))
    return errors
