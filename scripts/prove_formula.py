"""Compares the memory formulas with vLLM's own code, architecture by architecture.

    python -m scripts.prove_formula CONFIGS ANSWERS [--ask PYTHON] [--cpu]

CONFIGS has a directory with config.json (and hf_quant_config.json, if there is one) for each model,
named ORG--NAME, or ORG--NAME+mtp to ask with the model's own drafter. With --ask, the vLLM of that
Python is asked for each model that has no file in ANSWERS yet, on the meta device and without a GPU
(clusterctl/planning/ask_vllm.py); a machine without a driver needs a C compiler. Then
clusterctl/planning/proven.json is written: per architecture how far weights and tokens of the KV
cache are off; clusterctl/planning/answers.json, what vLLM said of the catalogue's models for which
the formulas are not proven; and tests/unit/planning/asked_models.json, of those for which they are.
What these have of the same release stays, unless it was asked again: one new model can be added.

With --cpu, PYTHON has a vLLM for CPUs. Weights and groups of the cache are the same there, as
encoders and Whisper have them; kernels that decide about blocks are not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

from clusterctl.errors import ClusterctlError
from clusterctl.models.catalogue import config_file
from clusterctl.models.config_files import read_config
from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape
from clusterctl.planning import ask_vllm
from clusterctl.planning.answers import ANSWERS
from clusterctl.planning.asked_plan import described
from clusterctl.planning.engine_answer import EngineAnswer, read_answer
from clusterctl.planning.hardware import GpuModel, parse_gpus
from clusterctl.planning.kv_cache import CPU_BLOCK
from clusterctl.planning.memory import plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import seat_ranks, sites_of
from clusterctl.planning.proof import DRAFTED, PROVEN, PROVEN_WITHIN, is_proven
from clusterctl.planning.rules import rules_for
from clusterctl.units import GIB

# What vLLM said of models of which the catalogue has a config.json, for tests of the formula
ASKED = Path(__file__).parents[1] / "tests/unit/planning/asked_models.json"

SIZES = (1, 8)  # Of tensor parallelism
_OTHER_SIZES = (2, 4)  # For models of which vLLM's answers are kept
_BY_LENGTH = {"FullAttention", "MLAAttention"}  # Caches that steps of another size do not change
_CACHE = 64 * GIB
_BATCH = 8192
_FLAGS = [f"--kv-cache-memory-bytes={_CACHE}", f"--max-num-batched-tokens={_BATCH}",
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
    asked.answers.mkdir(parents=True, exist_ok=True)
    directories = sorted(file.parent for file in asked.configs.glob("*/config.json"))
    if asked.ask:
        ask_all(asked.ask, directories, asked.answers, SIZES, cpu=asked.cpu)
    rows = list(compared(asked.configs, asked.answers))
    for row in rows:
        print(f"{row['model']:60} TP {row['tp']} {row['architecture']:40} "
              f"weights {row['weights_off']:+8.2%} tokens {row['tokens_off']:+8.2%}")  # fmt: skip
    PROVEN.write_text(dumped(rows, json.loads(PROVEN.read_text()), cpu=asked.cpu))
    if asked.cpu:
        return 0
    ASKED.write_text(said_of_catalogue(rows, json.loads(ASKED.read_text())))

    others = [each for each in directories if needs_answers(each)]
    if asked.ask:
        ask_all(asked.ask, others, asked.answers, _OTHER_SIZES, cpu=False)
    ANSWERS.write_text(kept(others, asked.answers, json.loads(ANSWERS.read_text())))
    return 0


def gpu_of(directory: Path) -> GpuModel:
    """Return the GPU to ask for: NVFP4 has its own kernels from Blackwell on."""
    return parse_gpus("B200" if "NVFP4" in directory.name.upper() else "H200")[0]


# --- asking ---------------------------------------------------------------------------------------


def ask_all(
    python: str, directories: Sequence[Path], answers: Path, sizes: Sequence[int], *, cpu: bool
) -> None:
    """Ask for each model and size that has no answer yet, and write one file for each."""
    waiting: dict[str, list[dict[str, Any]]] = {}
    for size in sizes:
        for directory in directories:
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


def needs_answers(path: Path) -> bool:
    """Return whether this directory, or file of the catalogue, is of a model of the catalogue for
    which the formulas are not proven."""
    hub_id = path.name.removesuffix(".json").replace("--", "/")
    if not config_file(hub_id).exists():
        return False
    shape = describe(read_config(path), hub_id)
    return bool(shape.assumptions) or not is_proven(shape.architecture)


def kept(directories: Sequence[Path], answers: Path, before: dict[str, Any]) -> str:
    """Return JSON with a line for each model: what `clusterctl.planning.answers` reads. `before`:
    earlier answers, which stay if they are of the same release, and still needed."""
    table, releases = {}, set()
    for directory in directories:
        by_tp, kinds = {}, set[str]()
        for size in sorted((*SIZES, *_OTHER_SIZES)):
            file = answer_file(answers, directory, size)
            try:
                answer = read_answer(file.read_text())
            except (OSError, ValueError) as failed:
                print(f"{file.stem}: {failed}")
                continue
            if answer.refusal is None and answer.groups:
                kinds |= {group.kind for group in answer.groups}
                releases.add(answer.vllm)
                by_tp[str(size)] = {
                    "weights_gib": round(answer.weights_gib[0], 4),
                    "hosted_gib": round(answer.hosted_gib[0], 2),
                    "block_bytes": answer.block_bytes[0],
                    "requests": [[each.length, each.blocks] for each in answer.requests],
                    "states": any(group.keeps_state for group in answer.groups),
                }
        if by_tp:
            batch = None if kinds <= _BY_LENGTH else _BATCH
            row = {"gpu": gpu_of(directory).name, "batch": batch, "by_tp": by_tp}
            table[directory.name.replace("--", "/")] = row
    (release,) = releases or {before["vllm"]}
    old = before["models"] if before["vllm"] == release else {}
    table = {name: row for name, row in old.items() if needs_answers(config_file(name))} | table
    lines = [f'  "{name}": {json.dumps(row)}' for name, row in sorted(table.items())]
    head = {"note": "made by scripts/prove_formula.py: do not edit", "vllm": release,
            "date": f"{datetime.now(UTC).date()}"}  # fmt: skip
    top = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return "{\n" + top + ' "models": {\n' + ",\n".join(lines) + "\n }\n}\n"


def dumped(rows: list[dict[str, Any]], before: dict[str, Any], *, cpu: bool = False) -> str:
    """Return JSON with a line for each architecture: how far its worst comparison is off, and what
    was compared, as MODEL with its quantisation and TP sizes. `before`: an earlier table, of which
    what was not compared now stays, if it is of the same release, or these were asked of a vLLM for
    CPUs."""
    architectures: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        architectures.setdefault(row["architecture"], []).append(row)
    releases = sorted({row["vllm"] for row in rows})
    of = f" (vLLM {', '.join(releases)} for CPUs)" if cpu else ""
    releases = before["vllm"] if cpu else releases
    table = dict(before["architectures"]) if before.get("vllm") == releases else {}
    for name, found in architectures.items():
        compared: dict[str, list[str]] = {}
        for row in found:
            named = "defaults" if row["model"].startswith("default/") else row["model"]
            model = f"{named} {row['quantization']}".strip()
            compared.setdefault(model, []).append(str(row["tp"]))
        worst = {key: max(abs(row[key]) for row in found) for key in ("weights_off", "tokens_off")}
        told = {model: f"{model} TP {', '.join(sizes)}{of}" for model, sizes in compared.items()}
        earlier = table.get(name, {"compared": ""})
        older = {
            each.partition(" TP ")[0]: each for each in earlier["compared"].split("; ") if each
        }
        if older.keys() - told:  # Models that were not compared now
            told = older | told
            worst = {key: max(off, earlier[key]) for key, off in worst.items()}
        table[name] = worst | {"compared": "; ".join(told.values())}
    lines = [f'  "{name}": {json.dumps(each)}' for name, each in sorted(table.items())]
    about = (
        "made by scripts/prove_formula.py: do not edit. Weights of a rank and tokens in a KV cache "
        "of 64 GiB, by the formula against vLLM's own code on the meta device; defaults: those of "
        "the architecture's Config class (scripts/default_configs.py)"
    )
    head = {
        "note": about,
        "vllm": releases,
        "date": f"{datetime.now(UTC).date()}",
    }
    top = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items())
    return "{\n" + top + ' "architectures": {\n' + ",\n".join(lines) + "\n }\n}\n"


def said_of_catalogue(rows: list[dict[str, Any]], said: dict[str, dict[str, list[float]]]) -> str:
    """Return JSON with a line for each model: vLLM's GiB of weights and tokens by TP size, with
    those that were said before."""
    for row in rows:
        if config_file(row["model"]).exists() and abs(row["weights_off"]) <= PROVEN_WITHIN:
            said.setdefault(row["model"], {})[str(row["tp"])] = row["said"]
    lines = [f' "{model}": {json.dumps(found)}' for model, found in sorted(said.items())]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
