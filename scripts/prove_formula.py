"""Compares the memory formulas with vLLM's own code, architecture by architecture.

    python -m scripts.prove_formula CONFIGS ANSWERS [--ask PYTHON] [--cpu]

CONFIGS has a directory with config.json (and hf_quant_config.json, if there is one) for each model,
named ORG--NAME, or ORG--NAME+mtp to ask with the model's own drafter. With --ask, the vLLM of that
Python is asked for each model that has no file in ANSWERS yet, on the meta device and without a GPU
(clusterctl/planning/ask_vllm.py); a machine without a driver needs a C compiler. Then
clusterctl/planning/proven.json is written: per architecture how far weights and tokens of the KV
cache are off; and tests/unit/planning/asked_models.json, what vLLM said of the catalogue's models.

With --cpu, PYTHON has a vLLM for CPUs, and what is known of other architectures is kept. Weights
and groups of the cache are the same there, as encoders and Whisper have them; kernels that decide
about blocks are not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from clusterctl.errors import ClusterctlError
from clusterctl.models.catalogue import config_file
from clusterctl.models.config_files import read_config
from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape
from clusterctl.planning import ask_vllm
from clusterctl.planning.asked_plan import described
from clusterctl.planning.engine_answer import EngineAnswer, read_answer
from clusterctl.planning.hardware import GpuModel, parse_gpus
from clusterctl.planning.kv_cache import CPU_BLOCK
from clusterctl.planning.memory import plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import seat_ranks, sites_of
from clusterctl.planning.proof import DRAFTED, PROVEN, PROVEN_WITHIN
from clusterctl.planning.rules import rules_for
from clusterctl.units import GIB

# What vLLM said of models of which the catalogue has a config.json, for tests of the formula
ASKED = Path(__file__).parents[1] / "tests/unit/planning/asked_models.json"

SIZES = (1, 8)  # Of tensor parallelism
_CACHE = 64 * GIB
_FLAGS = [f"--kv-cache-memory-bytes={_CACHE}", "--max-num-batched-tokens=8192",
          "--max-num-seqs=256"]  # fmt: skip
_WITH_DRAFTER = '--speculative-config={"method":"mtp","num_speculative_tokens":1}'
_AT_ONCE = 100  # Questions to one process, which imports vLLM once


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("configs", type=Path)
    arguments.add_argument("answers", type=Path)
    arguments.add_argument("--ask", metavar="PYTHON")
    arguments.add_argument("--cpu", action="store_true")
    asked = arguments.parse_args()
    if asked.cpu:
        _FLAGS.append(f"--block-size={CPU_BLOCK}")
    if asked.ask:
        asked.answers.mkdir(parents=True, exist_ok=True)
        ask_all(asked.ask, asked.configs, asked.answers, cpu=asked.cpu)
    rows = list(compared(asked.configs, asked.answers))
    for row in rows:
        print(f"{row['model']:60} TP {row['tp']} {row['architecture']:40} "
              f"weights {row['weights_off']:+8.2%} tokens {row['tokens_off']:+8.2%}")  # fmt: skip
    PROVEN.write_text(dumped(rows, json.loads(PROVEN.read_text()) if asked.cpu else None))
    if asked.cpu:
        return 0
    ASKED.write_text(said_of_catalogue(rows))
    return 0


def gpu_of(directory: Path) -> GpuModel:
    """Return the GPU to ask for: NVFP4 has its own kernels from Blackwell on."""
    return parse_gpus("B200" if "NVFP4" in directory.name.upper() else "H200")[0]


# --- asking ---------------------------------------------------------------------------------------


def ask_all(python: str, configs: Path, answers: Path, *, cpu: bool) -> None:
    """Ask for each model and size that has no answer yet, and write one file for each."""
    waiting: dict[str, list[dict[str, Any]]] = {}
    for size in SIZES:
        for directory in sorted(file.parent for file in configs.glob("*/config.json")):
            if not answer_file(answers, directory, size).exists():
                gpu = gpu_of(directory)
                waiting.setdefault(gpu.name, []).append(question(directory, size))
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as stub:
        if not cpu and not Path("/dev/nvidiactl").exists():
            make_driver_stub(python, Path(stub))
            given = environment.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{stub}:{given}" if given else stub
        for name, questions in waiting.items():
            gpu_asked = None if cpu else parse_gpus(name)[0]
            for first in range(0, len(questions), _AT_ONCE):
                some = questions[first : first + _AT_ONCE]
                ask_some(python, gpu_asked, some, answers, environment)


def ask_some(
    python: str,
    gpu: GpuModel | None,
    questions: list[dict[str, Any]],
    answers: Path,
    environment: dict[str, str],
) -> None:
    asked = {"gpu": described(gpu) if gpu else None, "questions": questions}
    with subprocess.Popen(
        [python, ask_vllm.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment, text=True,
    ) as process:  # fmt: skip
        stdin, stdout = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        stdin.write(json.dumps(asked))
        stdin.close()
        for line in stdout:
            answer = json.loads(line)
            (answers / f"{answer['id']}.json").write_text(line)
            print(answer["id"], answer.get("refusal", "")[:200], flush=True)


def question(directory: Path, size: int) -> dict[str, Any]:
    files = {path.name: path.read_text() for path in directory.glob("*.json")}
    return {
        "id": f"{directory.name}.tp{size}",
        "directory": "",
        "files": files,
        "arguments": flags(directory, size),
        "env": {},
        "ranks": [0],
        "room": [],
    }


def flags(directory: Path, size: int) -> list[str]:
    drafter = [_WITH_DRAFTER] if directory.name.endswith(DRAFTED) else []
    return [*_FLAGS, f"--tensor-parallel-size={size}", *drafter]


def answer_file(answers: Path, directory: Path, size: int) -> Path:
    return answers / f"{directory.name}.tp{size}.json"


def make_driver_stub(python: str, directory: Path) -> None:
    """Build a libcuda.so.1 whose functions all return CUDA_ERROR_NO_DEVICE, with which vLLM's
    compiled modules can be loaded."""
    where = "import importlib.util as u; print(*u.find_spec('vllm').submodule_search_locations)"
    package = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    names: set[str] = set()
    for library in Path(package.stdout.strip()).rglob("*.so"):
        table = subprocess.run(["readelf", "-W", "--dyn-syms", str(library)], capture_output=True,
                               text=True, check=False)  # fmt: skip
        names.update(re.findall(r"\bUND (cu[A-Z]\w*|nvml\w+)", table.stdout))
    source = directory / "stub.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names)))
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    str(directory / "libcuda.so.1"), str(source)], check=True)  # fmt: skip


# --- comparing ------------------------------------------------------------------------------------


def compared(configs: Path, answers: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each answer: the formula's figures against vLLM's."""
    for file in sorted(answers.glob("*.tp*.json")):
        name, _, size = file.stem.rpartition(".tp")
        try:
            answer = read_answer(file.read_text())
        except ValueError as failed:
            print(f"{file.stem}: {failed}")
            continue
        if is_usable(configs / name) and answer.refusal is None:
            yield row_of(configs / name, int(size), answer)


def is_usable(directory: Path) -> bool:
    """Return whether vLLM would read the checkpoint's quantisation: it takes config.json without a
    method, and ModelOpt's own file without a producer, for one that is not quantised."""
    file, beside = directory / "config.json", directory / "hf_quant_config.json"
    if not file.exists():
        return False
    stored = json.loads(file.read_text()).get("quantization_config")
    if stored is None and beside.exists():
        return "producer" in json.loads(beside.read_text())
    return stored is None or bool(stored.get("quant_method") or stored.get("quantization"))


def row_of(directory: Path, size: int, answer: EngineAnswer) -> dict[str, Any]:
    weights, tokens, why = 0.0, 0, ""
    try:
        shape = describe(read_config(directory), directory.name)
        weights, tokens = predicted(shape, directory, size, answer.vllm)
    except (ClusterctlError, KeyError, ValueError) as failed:
        why = str(failed)
    theirs = answer.tokens(0, _CACHE)
    row = {
        "model": directory.name.replace("--", "/"),
        "architecture": answer.architecture + (DRAFTED if directory.name.endswith(DRAFTED) else ""),
        "vllm": answer.vllm,
        "tp": size,
        "quantization": quantization_of(directory),
        "said": [round(answer.weights_gib[0], 5), theirs],
        "weights_off": round(weights / answer.weights_gib[0] - 1, 5),
        "tokens_off": round(tokens / theirs - 1, 6) if theirs else 0.0,
    }
    return row | ({"error": why} if why else {})


def predicted(shape: ModelShape, directory: Path, size: int, vllm: str) -> tuple[float, int]:
    """Return the formula's GiB of weights on a rank at creation, and the tokens of the cache."""
    gpu = gpu_of(directory)
    placement = seat_ranks(sites_of(f"{size}x{gpu.name}", 1), size, 1)
    plan = plan_memory(shape, placement, parse_options(flags(directory, size)), rules_for(vllm))
    return plan.ranks[0].weights_gib - unpacked_gib(shape, size), plan.kv_cache_tokens


def unpacked_gib(shape: ModelShape, size: int) -> float:
    """Return the GiB of matrices of latent attention that loading unpacks after creation: logs have
    them, and the meta device has not."""
    elements = 0
    for attention in shape.attentions:
        latent = attention.latent
        if latent and not latent.expanded:
            rows = attention.heads // size * (latent.nope_dim + latent.value_dim)
            elements += rows * latent.kv_rank
    return elements * 2 / GIB


def quantization_of(directory: Path) -> str:
    config = read_config(directory)
    text = config.get("text_config") or {}
    found = config.get("quantization_config") or text.get("quantization_config") or {}
    return str(found.get("quant_algo") or found.get("quant_method") or "")


def dumped(rows: list[dict[str, Any]], known: dict[str, Any] | None = None) -> str:
    """Return JSON with a line for each architecture: how far its worst comparison is off, and what
    was compared, as MODEL with its quantisation and TP sizes. `known`: the document before, of
    which other architectures are kept, while these were asked of a vLLM for CPUs."""
    architectures: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        architectures.setdefault(row["architecture"], []).append(row)
    kept = known["architectures"] if known else {}
    rest = {name: row for name, row in kept.items() if name not in architectures}
    versions = sorted({row["vllm"] for row in rows})
    of = f" (vLLM {', '.join(versions)} for CPUs)" if known else ""
    lines = [f'  "{name}": {json.dumps(row)}' for name, row in rest.items()]
    for name, found in architectures.items():
        compared: dict[str, list[str]] = {}
        for row in found:
            named = "defaults" if row["model"].startswith("default/") else row["model"]
            model = f"{named} {row['quantization']}".strip()
            compared.setdefault(model, []).append(str(row["tp"]))
        worst = {key: max(abs(row[key]) for row in found) for key in ("weights_off", "tokens_off")}
        told = "; ".join(f"{model} TP {', '.join(sizes)}" for model, sizes in compared.items()) + of
        lines.append(f'  "{name}": {json.dumps(worst | {"compared": told})}')
    about = (
        "made by scripts/prove_formula.py: do not edit. Weights of a rank and tokens in a KV cache "
        "of 64 GiB, by the formula against vLLM's own code on the meta device; defaults: those of "
        "the architecture's Config class (scripts/default_configs.py)"
    )
    head = {
        "note": about,
        "vllm": known["vllm"] if known else versions,
        "date": f"{datetime.now(UTC).date()}",
    }
    top = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return "{\n" + top + ' "architectures": {\n' + ",\n".join(sorted(lines)) + "\n }\n}\n"


def said_of_catalogue(rows: list[dict[str, Any]]) -> str:
    """Return JSON with a line for each model: vLLM's GiB of weights and tokens by TP size."""
    said: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if config_file(row["model"]).exists() and abs(row["weights_off"]) <= PROVEN_WITHIN:
            said.setdefault(row["model"], {})[str(row["tp"])] = row["said"]
    lines = [f' "{model}": {json.dumps(found)}' for model, found in sorted(said.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
