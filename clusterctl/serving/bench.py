"""vLLM's own benchmark of a service: its command line and figures, those of earlier runs. Pure.

A load is closed (`concurrency` requests at once, each followed by the next) or open (`rate`
requests per second, however many are still being answered).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from statistics import fmean
from typing import Any

from clusterctl.errors import StepFailed, UsageError
from clusterctl.kinds.kind import ModelKind
from clusterctl.kinds.text import TEXT
from clusterctl.node.documents import ServiceDocument, from_json, to_json
from clusterctl.node.kind_bench import KEY as KEY_VARIABLE
from clusterctl.node.kind_bench import KindBench
from clusterctl.node.package import FILE_NAME, build
from clusterctl.serving.job import Job
from clusterctl.serving.vllm_flags import TRUST, last_value, parse_arguments

RESULT = "result.json"

PERCENTILES = (50, 95, 99)
# Seconds to the first token, per output token after it, and between two tokens that arrive
LATENCIES = ("ttft", "tpot", "itl")
_WHOLE = "e2el"  # Of the whole answer

COMPARED = (1, 8)  # Requests at once without further options
SWEPT = (1, 4, 16, 64)

_RUNS = 10  # Of the last time, at most
_KEPT = 500  # Results in the file; the oldest go first

# Two-sided 95 % of Student's t by degrees of freedom; about 2 beyond the last
_STUDENT = (12.7, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)

# argparse's, of releases before the command (0.7, 0.8: scripts of the source tree)
_NO_COMMAND = "invalid choice: 'bench'"


@dataclass(frozen=True)
class BenchLoad:
    """What the benchmark sends. Tokens are those of one request."""

    concurrency: int | None
    rate: float | None  # Requests per second
    prompt: int
    output: int
    requests: int

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"{self.concurrency} at once"


@dataclass(frozen=True)
class BenchFigures:
    """What one load measured. Latencies in milliseconds, by percentile."""

    completed: int
    failed: int
    seconds: float
    requests_per_s: float
    tokens_per_s: float  # Output tokens
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    itl_ms: dict[str, float]
    # Of kinds that are not measured in tokens, whose only latency is that of a whole answer; tokens
    # of models that generate nothing are those read.
    unit: str = "tokens"
    units_per_s: float = 0.0
    per: str = "s"  # As users see them: pages/min
    sent: str = ""  # What was in a request, in words
    e2el_ms: dict[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Units of its kind per second."""
        return self.units_per_s if self.unit != "tokens" else self.tokens_per_s


@dataclass(frozen=True)
class BenchResult:
    """A measurement as stored on the head, one JSON line each."""

    time: float  # Unix seconds
    service: str
    model: str
    versions: dict[str, str]  # vllm, ray, image
    fingerprint: str  # That of the service's document
    tensor_parallel: int
    pipeline_parallel: int
    load: BenchLoad
    figures: BenchFigures


def loads(
    *, rates: Sequence[float], sweep: bool, prompt: int, output: int, requests: int | None
) -> tuple[BenchLoad, ...]:
    """Return the loads to measure, one after the other. Raises UsageError."""
    if rates and sweep:
        raise UsageError(
            "--rate and --sweep contradict each other", hint="several rates: --rate 1,4,16"
        )
    half_a_minute = [(rate, requests or max(20, math.ceil(30 * rate))) for rate in rates]
    return tuple(BenchLoad(None, rate, prompt, output, count) for rate, count in half_a_minute) or (
        tuple(
            BenchLoad(at_once, None, prompt, output, requests or 4 * max(2, at_once))
            for at_once in (SWEPT if sweep else COMPARED)
        )
    )


def bench_job(
    document: ServiceDocument,
    url: str,
    key: str,
    load: BenchLoad,
    seed: int,
    kind: ModelKind = TEXT,
) -> Job:
    """Return the job that measures the service at `url` (without /v1) from the head's container.
    `seed` determines the prompts: with that of an earlier run, they are in vLLM's prefix cache."""
    # The container's proxy settings are meant for the Internet, not for the cluster.
    env = {KEY_VARIABLE: key, "NO_PROXY": "*", "no_proxy": "*"}
    if kind.bench and kind.bench.ask:
        order = KindBench(url, document.served_name, kind.name, seed, load.requests,
                          load.concurrency or 0, load.rate or 0.0, load.output,
                          [*PERCENTILES], RESULT)  # fmt: skip
        program = build().decode("utf-8", "surrogateescape")  # As the job encodes it
        files = {FILE_NAME: program, "order.json": to_json(order)}
        return Job(["python3", FILE_NAME, "bench", "order.json"], files, env, RESULT)
    # `vllm bench` makes prompts with the model's tokenizer.
    given = parse_arguments(document.argv[3:])
    tokenizer = last_value(given, "tokenizer")
    argv = ["vllm", "bench", "serve", "--model", document.argv[2]]
    argv += ["--served-model-name", document.served_name, "--base-url", url]
    argv += ["--tokenizer", tokenizer] if tokenizer else []
    trusted = any(a.key == TRUST and not a.negated for a in given)
    argv += [f"--{TRUST}"] if trusted else []
    argv += ["--num-prompts", str(load.requests), "--random-input-len", str(load.prompt)]
    if kind.bench and not kind.generates:
        how = kind.bench
        argv += ["--backend", how.backend, "--endpoint", how.endpoint]
        argv += ["--dataset-name", how.dataset]
    else:  # By default of completions; the names of these flags differ between releases
        argv += ["--dataset-name", "random", "--ignore-eos", "--random-output-len"]
        argv += [str(load.output)]
    argv += ["--seed", str(seed)]
    if load.rate is not None:
        argv += ["--request-rate", str(load.rate)]
    else:
        argv += ["--max-concurrency", str(load.concurrency)]
    latencies = LATENCIES if kind.generates else (_WHOLE,)
    argv += ["--percentile-metrics", ",".join(latencies), "--metric-percentiles"]
    argv += [",".join(map(str, PERCENTILES)), "--save-result", "--result-filename", RESULT]
    offline = {name: document.env[name] for name in ("HF_HUB_OFFLINE",) if name in document.env}
    return Job([*argv, "--disable-tqdm"], env={**offline, **env}, result=RESULT)


def read_figures(
    text: bytes | None, log: str, service: str, vllm: str, kind: ModelKind = TEXT
) -> BenchFigures:
    """Parse what `vllm bench serve` wrote. Raises UsageError if this vLLM has no such command,
    StepFailed if it measured nothing. `log`: the end of its output."""
    if _NO_COMMAND in log:
        raise UsageError(
            f"the image's vLLM {vllm} has no `vllm bench`; that release has scripts in its source "
            "tree instead",
            hint="clusterctl run benchmark_serving.py, or a newer image",
        )
    try:
        found = json.loads(text or b"", parse_constant=_not_finite)
        figures = BenchFigures(
            completed=int(found["completed"]),
            failed=int(found["num_prompts"]) - int(found["completed"]),
            seconds=float(found["duration"]),
            requests_per_s=float(found["request_throughput"]),
            **(_generated(found) if kind.unit == "tokens" else _in_units(found, kind)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StepFailed(
            f"the benchmark of {service} ended without a result",
            hint="clusterctl status",
            detail=log[-2000:] or str(error),
        ) from None
    if not figures.completed:
        raise StepFailed(
            f"{service} answered none of the benchmark's {figures.failed} requests",
            hint=f"clusterctl logs {service}",
            detail=log[-2000:] or None,
        )
    return figures


def _generated(found: Mapping[str, Any]) -> dict[str, Any]:
    latencies = {f"{name}_ms": _percentiles(found, name) for name in LATENCIES}
    return {"tokens_per_s": float(found["output_throughput"]), **latencies}


def _in_units(found: Mapping[str, Any], kind: ModelKind) -> dict[str, Any]:
    """Read the figures of a model that is not measured by the tokens it generates. A request of a
    reranker may have several texts, which vLLM before 0.32 does not count."""
    units = found.get("input_sequence_throughput", found["request_throughput"])
    return {
        "tokens_per_s": float(found["total_token_throughput"]),
        **{f"{name}_ms": {} for name in LATENCIES},
        "unit": kind.unit,
        "units_per_s": float(units),
        "per": kind.per,
        "sent": kind.bench.sent if kind.bench else "",
        "e2el_ms": _percentiles(found, _WHOLE),
    }


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _percentiles(found: Mapping[str, Any], name: str) -> dict[str, float]:
    return {f"p{each}": round(float(found[f"p{each}_{name}_ms"]), 2) for each in PERCENTILES}


def read_results(data: bytes | None) -> list[BenchResult]:
    """Return the results stored on the head, oldest first; lines of other versions are left out."""
    found = []
    for line in (data or b"").splitlines():
        with suppress(ValueError):
            found.append(from_json(BenchResult, line.decode(errors="replace")))
    return found


def with_results(data: bytes | None, new: Sequence[BenchResult]) -> bytes:
    """Return the file's new content: `data` and a line for each of `new`, bounded."""
    lines = [*(data or b"").splitlines(), *(json.dumps(asdict(one)).encode() for one in new)]
    return b"\n".join(lines[-_KEPT:]) + b"\n"


@dataclass(frozen=True)
class LastTime:
    """The new measurement compared with the last one. Shares: 0.1 is 10 %."""

    time: float  # Unix seconds, of the last time
    vllm: str
    tokens_per_s: float  # The mean of its runs
    change: float  # Of tokens/s, or of what else the kind is measured in
    # By how much two such means differ once in 20 times with nothing changed; None if each was
    # measured once
    noise: float | None
    verdict: str  # slower | faster | the same | unknown
    units_per_s: float = 0.0  # The mean of its runs, if the kind is not measured in tokens


def comparison(now: Sequence[BenchResult], kept: Sequence[BenchResult]) -> LastTime | None:
    """Compare runs of one load with the last ones of the same service, model and load; None without
    any, or if nothing was measured. `kept`: results from before, oldest first."""
    one = now[0]
    of_load = [
        each
        for each in kept
        if (each.service, each.model, each.load) == (one.service, one.model, one.load)
        and each.figures.speed > 0
    ]
    if not of_load or not all(each.figures.speed > 0 for each in now):
        return None
    last = of_load[-1]
    setup = (last.versions, last.fingerprint)
    same = takewhile(lambda each: (each.versions, each.fingerprint) == setup, reversed(of_load))
    before = [*same][:_RUNS]
    groups = [[math.log(each.figures.speed) for each in runs] for runs in (now, before)]
    new, old = map(fmean, groups)
    change, noise, verdict = math.expm1(new - old), None, "unknown"
    if freedom := sum(map(len, groups)) - 2:
        squares = sum(
            (x - mean) ** 2 for runs, mean in zip(groups, (new, old), strict=True) for x in runs
        )
        error = math.sqrt(squares / freedom * sum(1 / len(runs) for runs in groups))
        limit = error * (_STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2.0)
        noise = math.expm1(limit)
        verdict = "the same" if abs(new - old) <= limit else "faster" if new > old else "slower"
    vllm = last.versions.get("vllm", "")
    tokens, units = math.exp(old), 0.0
    if one.figures.unit != "tokens":
        tokens, units = fmean(each.figures.tokens_per_s for each in before), math.exp(old)
    return LastTime(last.time, vllm, tokens, change, noise, verdict, units)
