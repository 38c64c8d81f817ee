"""Writes a config.json for each architecture of vLLM's registry, from the defaults of its Config
class in Transformers or in vLLM. Runs in an environment with vLLM and imports nothing of ours.

    PYTHON_WITH_VLLM scripts/default_configs.py CONFIGS

Each becomes CONFIGS/default--ARCHITECTURE/config.json, which `scripts/prove_formula.py` asks for.
Such a model need not exist: it has the keys of real ones, with the sizes of the class.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    target = Path(sys.argv[1])
    for architecture, module in generating():
        found = config_of(architecture, module)
        if found is None:
            print(f"{architecture}: no class")
            continue
        directory = target / f"default--{architecture}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(found, indent=1, sort_keys=True))


def generating() -> Iterator[tuple[str, str]]:
    """Yield the architectures that generate text, each with the name of its module."""
    from vllm.model_executor.models import registry

    for group in (registry._TEXT_GENERATION_MODELS, registry._MULTIMODAL_MODELS):
        for architecture, (module, _) in group.items():
            yield architecture, module.rpartition(".")[2]


def config_of(architecture: str, module: str) -> dict[str, Any] | None:
    """Return what config.json of a model with all defaults has; None if no class can be made."""
    from transformers import AutoConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for kind in model_types(architecture, module):
        try:
            made = (
                _CONFIG_REGISTRY[kind]() if kind in _CONFIG_REGISTRY else AutoConfig.for_model(kind)
            )
            found = json.loads(made.to_json_string(use_diff=True))
        except Exception as failed:
            print(f"{architecture}: {kind}: {failed!r}"[:200])
            continue
        return found | {"architectures": [architecture], "model_type": kind, "dtype": "bfloat16"}
    return None


def model_types(architecture: str, module: str) -> Iterator[str]:
    """Yield the model types that the architecture may have, the likeliest first."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    found: dict[str, None] = {}
    for name, mapping in vars(modeling_auto).items():
        if name.endswith("_MAPPING_NAMES"):
            for kind, classes in mapping.items():
                if architecture in (classes if isinstance(classes, tuple | list) else [classes]):
                    found[kind] = None
    snake = re.sub(r"(For[A-Z].*|LMHeadModel|Model)$", "", architecture)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", snake).lower()
    for kind in (module, snake, snake.replace("_", ""), module.replace("_mm", "")):
        if kind in CONFIG_MAPPING_NAMES or kind in _CONFIG_REGISTRY:
            found[kind] = None
    yield from found


if __name__ == "__main__":
    main()
