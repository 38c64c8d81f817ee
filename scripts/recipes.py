"""Takes models from a checkout of github.com/vllm-project/recipes into the catalogue.

    python -m scripts.recipes RECIPES [--configs DIR]

Of each model in clusterctl/models/catalogue.json that names a `recipe` (its path under models/),
the minimum release, the variants by precision, the parsers, and the flags by class of GPU are
written anew; a model without a recipe there keeps what it has. DIR has a directory with config.json
for each model and variant, named ORG--NAME; what affects memory of it goes into
clusterctl/models/configs. Prints the recipes of text and multimodal models that the catalogue
lacks. `scripts/catalogue.py` then writes docs/catalogue.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from clusterctl.models.catalogue import config_file
from clusterctl.models.config_files import read_config
from clusterctl.models.version import parse_version
from clusterctl.serving.release_flags import NEWEST_RELEASE
from scripts.catalogue import CATALOGUE, lines

# Settings for a machine or a taste rather than for the model; `serve` and users decide them.
_DECIDED_ELSEWHERE = frozenset(
    {
        "--trust-remote-code",
        "--gpu-memory-utilization",
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--enable-prefix-caching",
        "--no-enable-prefix-caching",
        "--async-scheduling",
        "--served-model-name",
        "--host",
        "--port",
        "--tensor-parallel-size",
        "--distributed-executor-backend",
        "--enable-chunked-prefill",
        "--mm-processor-cache-gb",
        "--compilation-config",
        "--compilation_config",
        "--generation-config",
        "--chat-template",
        "--mamba-cache-mode",
        "--load-format",
        "--disable-cascade-attn",
        "--reasoning-parser-plugin",
        "--allowed-local-media-path",
        "--enable-flashinfer-autotune",
        "--enable-log-requests",
        "--max-cudagraph-capture-size",
        "--speculative-config",
        "-cc.mode",
        "-cc.cudagraph_mode",
    }
)
_SEES = r"-VL-|gemma-3-[124]|gemma-4|Llama-4|Omni"
_CLASSES = ("hopper", "blackwell")
_OTHER_MAKERS = ("amd/", "Eco-Tech/")  # Checkpoints for other GPUs than NVIDIA's
_LARGEST_CONFIG = 100_000  # Bytes; one that names every layer of a large model has megabytes

_OTHER_EXPERT = re.compile(r"\bexperts\.[1-9]")

# What in a config.json has nothing to do with sizes
_NO_SIZES = frozenset(
    {
        "_name_or_path",
        "transformers_version",
        "initializer_range",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_dropout",
        "hidden_act",
        "rms_norm_eps",
        "torch_dtype",
        "dtype",
        "auto_map",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "router_aux_loss_coef",
        "output_router_logits",
        "mlp_dropout",
        "hidden_dropout",
        "task_specific_params",
        "id2label",
        "label2id",
        "problem_type",
        "chunk_size_feed_forward",
        "producer",
        "generation_config",
    }
)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("recipes", type=Path)
    arguments.add_argument("--configs", type=Path)
    asked = arguments.parse_args()
    document = json.loads(CATALOGUE.read_text())
    used = set()
    for model in document["models"]:
        file = asked.recipes / "models" / f"{model.get('recipe', '-')}.yaml"
        if file.exists():
            used.add(model["recipe"])
            model.update(from_recipe(yaml.safe_load(file.read_text()), model))
        if "kind" not in model and re.search(_SEES, model["hub_id"]):
            model["kind"] = "vision"
        if asked.configs:
            add_configs(model, asked.configs)
    CATALOGUE.write_text(lines(document))

    for file in sorted((asked.recipes / "models").rglob("*.yaml")):
        recipe = yaml.safe_load(file.read_text())
        name = f"{file.parent.name}/{file.stem}"
        if name not in used and "omni" not in recipe["meta"]["tasks"]:
            print(f"not in the catalogue: {name}")
    return 0


def from_recipe(recipe: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """Return what a recipe says of a model, in the catalogue's form."""
    about, features = recipe["model"], recipe.get("features") or {}
    tokens = needed(about.get("base_args") or [])
    for name in ("reasoning", "tool_calling"):
        tokens += needed((features.get(name) or {}).get("args") or [])
    found: dict[str, Any] = {
        "billions": model.get("billions") or billions(about["parameter_count"]),
        "since": released(about.get("min_vllm_version")),
        "variants": list(variants(recipe)),
        "gpu_flags": {
            name: needed(each.get("extra_args") or [])
            for name, each in (recipe.get("hardware_overrides") or {}).items()
            if name in _CLASSES
        },
    }
    if "flags" not in model:
        found["tokens"] = tokens
    found["gpu_flags"] = {name: each for name, each in found["gpu_flags"].items() if each}
    return {key: value for key, value in found.items() if value}


def variants(recipe: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the published checkpoints: precision, Hub id, GB that they need at least, flags."""
    seen = set()
    for each in recipe["variants"].values():
        other = each.get("model_id") or recipe["model"]["model_id"]
        precision = each["precision"]
        if precision in seen or "/" in precision or other.startswith(_OTHER_MAKERS):
            continue
        seen.add(precision)
        row = {"precision": precision, "hub_id": other, "least_gb": each["vram_minimum_gb"],
               "tokens": needed(each.get("extra_args") or [])}  # fmt: skip
        yield {key: value for key, value in row.items() if value}


def needed(words: list[str]) -> list[str]:
    """Return the flags without those that are decided elsewhere, spelled with dashes."""
    kept: list[str] = []
    taken = False
    for word in (part for each in words for part in str(each).split(" ", 1)):
        if word.startswith("-") and not word.startswith("-1"):
            name = re.split("[=.]", word, maxsplit=1)[0].replace("_", "-")
            taken = name not in _DECIDED_ELSEWHERE
            first, *rest = word.split(".", 1)
            flag = ".".join([first.replace("_", "-"), *rest])
            kept += [flag] if taken else []
        elif taken:
            kept.append(word)
    return known_parsers(kept)


def known_parsers(tokens: list[str]) -> list[str]:
    """Leave out parsers that come as a file beside the checkpoint."""
    known = {*NEWEST_RELEASE["reasoning_parsers"], *NEWEST_RELEASE["tool_parsers"]}
    pairs = ("--reasoning-parser", "--tool-call-parser")
    gone = {
        index + step
        for index, token in enumerate(tokens)
        for step in (0, 1)
        if token in pairs and tokens[index + 1] not in known
    }
    return [token for index, token in enumerate(tokens) if index not in gone]


def billions(text: str) -> float:
    """Return `552B`, `2.4T` or `230M` as a number of billions."""
    number = float(text.rstrip("BMT+ "))
    return {"B": number, "M": number / 1000, "T": number * 1000}[text.rstrip("+ ")[-1]]


def released(text: str | None) -> str:
    return text if text and parse_version(text) else ""


def add_configs(model: dict[str, Any], configs: Path) -> None:
    """Write what affects memory of the config.json of a model, and of its variants, into a file for
    each."""
    recent = [] if "config" in model else [model]
    for each in (*recent, *model.get("variants", ())):
        directory = configs / each["hub_id"].replace("/", "--")
        if (directory / "config.json").exists():
            config = sizes_of(read_config(directory))
            if not set(config.get("architectures", ())) & set(NEWEST_RELEASE["architectures"]):
                config["architectures"] = [model["architecture"]]
            text = json.dumps(config, separators=(",", ":"))
            config_file(each["hub_id"]).unlink(missing_ok=True)
            if len(text) < _LARGEST_CONFIG:
                config_file(each["hub_id"]).write_text(text + "\n")


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return what affects memory. Experts of a layer are stored alike: the first speaks for all."""
    return {
        key: sizes_of(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in _NO_SIZES and value is not None and not _OTHER_EXPERT.search(key)
    }


if __name__ == "__main__":
    sys.exit(main())
