"""Reads from a wheel of vLLM what clusterctl knows about that release, and writes it to
clusterctl/serving/vllm_releases.json.

    python -m scripts.vllm_release vllm-VERSION.whl

Only sources are read, nothing is imported or installed: flags with their defaults and what is
deprecated, architectures, load formats, formats of the KV cache, quantisations, parsers, metrics,
and lines of a start. Prints what changed since the newest release in the file, and ends with status
1 if clusterctl depends on something that is gone.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clusterctl.models.version import parse_version, show_version
from clusterctl.node.attempt import MARKS

ROOT = Path(__file__).parents[1]
RELEASES = ROOT / "clusterctl/serving/vllm_releases.json"

# Files with command line arguments; entrypoints/openai/cli_args.py before 0.27
_ARGUMENTS = re.compile(r"vllm/(engine/arg_utils|entrypoints/(\w+/)?cli_args)\.py$")

_GOING = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
_REMOVAL = re.compile(r"removed in v?(\d+\.\d+(?:\.\d+)?)")
_METRIC = re.compile(r"\bvllm:[a-z0-9_]+")

# What clusterctl/monitoring, node and survey read; suffixes are added by Prometheus
_SUFFIX = re.compile(r"_(total|bucket|sum|count)$")


@dataclass
class VllmRelease:
    """What the sources of one release have."""

    vllm: str
    flags: dict[str, Any] = field(default_factory=dict)  # Name: default; "?" if it is computed
    deprecated: dict[str, str] = field(default_factory=dict)  # Flag or value: when it will go
    architectures: list[str] = field(default_factory=list)
    # Those whose tables of tokens, whose heads adapters may change; and whose experts are adapted
    # with one matrix for gate and up
    adapted_embeddings: list[str] = field(default_factory=list)
    adapted_heads: list[str] = field(default_factory=list)
    joined_experts: list[str] = field(default_factory=list)
    load_formats: list[str] = field(default_factory=list)
    cache_dtypes: list[str] = field(default_factory=list)
    quantizations: list[str] = field(default_factory=list)
    reasoning_parsers: list[str] = field(default_factory=list)
    tool_parsers: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    start_lines: list[str] = field(default_factory=list)  # Those that `attempt.py` looks for


def main() -> int:
    release = read_wheel(Path(sys.argv[1]))
    document = json.loads(RELEASES.read_text())
    before = document["newest"]
    known = parse_version(before["vllm"]) if before else None
    version = parse_version(release.vllm)
    if version is None or (known and version < known):
        print(f"{release.vllm} is not newer than {before['vllm']}", file=sys.stderr)
        return 1

    today = datetime.now(UTC).date().isoformat()
    problems = list(changes(before, vars(release)))
    note_flags(document, show_version(version), set(release.flags))
    document["newest"] = {**vars(release), "source": Path(sys.argv[1]).name, "read": today}
    RELEASES.write_text(dumped(document))
    return 1 if problems else 0


def dumped(document: dict[str, Any]) -> str:
    """Return JSON with a line for each member of the two outer levels."""
    parts = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def note_flags(document: dict[str, Any], version: str, now: set[str]) -> None:
    """Note in `flags` which are new in this release and which are gone: [first release read with
    it, first release read without it or null]."""
    flags = document["flags"]
    for name in sorted(now - set(flags)):
        flags[name] = [version, None]
    for name, (first, gone) in flags.items():
        if name in now and gone:
            flags[name] = [first, None]
        elif name not in now and not gone:
            flags[name] = [first, version]
    if version not in document["read"]:
        document["read"].append(version)


def changes(before: dict[str, Any] | None, now: dict[str, Any]) -> Iterator[str]:
    """Print what changed, and yield what clusterctl depends on and does not find."""
    for name, value in now.items():
        if name == "vllm":
            print(f"vLLM {before['vllm'] if before else 'nothing'} -> {value}")
            continue
        old = (before or {}).get(name, type(value)())
        added = [each for each in value if each not in old]
        gone = [each for each in old if each not in value]
        for sign, each in (("+", added), ("-", gone)):
            if each:
                print(f"{name}: {sign} {', '.join(map(str, each))}")
        if isinstance(value, dict):
            for key in value.keys() & set(old):
                if value[key] != old[key]:
                    print(f"{name}: {key}: {old[key]!r} -> {value[key]!r}")

    for stage, marks in MARKS:
        if not set(marks) & set(now["start_lines"]):
            print(f"FAILED: no line shows the stage {stage} (clusterctl/node/attempt.py)")
            yield stage
    for metric in sorted(used_metrics() - set(now["metrics"])):
        print(f"FAILED: the metric {metric} is gone")
        yield metric


def used_metrics() -> set[str]:
    """Return the names of vLLM's metrics in clusterctl, without Prometheus' suffixes, and without
    those of which a newer name is read too."""
    found: set[str] = set()
    for file in (ROOT / "clusterctl").rglob("*"):
        if file.suffix in (".py", ".yaml", ".json") and file != RELEASES:
            found.update(_METRIC.findall(file.read_text(encoding="utf-8")))
    names = {_SUFFIX.sub("", name) for name in found}
    return {name for name in names if len(name) > len("vllm:ex")} - {"vllm:gpu_cache_usage_perc"}


# --- the wheel ------------------------------------------------------------------------------------


def read_wheel(wheel: Path) -> VllmRelease:
    """Read all that is known from a wheel's sources."""
    with zipfile.ZipFile(wheel) as opened:
        sources = {
            name: opened.read(name).decode("utf-8", "replace")
            for name in opened.namelist()
            if name.startswith("vllm/") and name.endswith(".py")
        }
    release = VllmRelease(wheel.name.split("-")[1])
    trees = [ast.parse(text) for name, text in sources.items() if _ARGUMENTS.match(name)]
    classes = configuration_classes(sources)
    for tree in trees:
        release.flags.update(flags_in(tree, classes))
    release.flags = dict(sorted(release.flags.items()))
    release.deprecated = dict(sorted(going(sources, release.flags)))

    registry = sources["vllm/model_executor/models/registry.py"]
    release.architectures = sorted(set(re.findall(r'(?m)^    "(\w+)":', registry)))
    models = ModelClasses.of(sources)
    for architecture, name in sorted(dict(registered(registry)).items()):
        tables = models.adapted_tables(name)
        release.adapted_embeddings += [architecture] * ("input_embeddings" in tables)
        release.adapted_heads += [architecture] * ("output_embeddings" in tables)
        release.joined_experts += [architecture] * bool(models.value("is_3d_moe_weight", name))
    release.load_formats = literals(sources, "LoadFormats")
    release.cache_dtypes = literals(sources, "CacheDType")
    release.quantizations = literals(sources, "QuantizationMethods")
    release.reasoning_parsers = parsers(sources, "vllm/reasoning/__init__.py")
    release.tool_parsers = parsers(sources, "vllm/tool_parsers/__init__.py")

    everything = "\n".join(sources.values())
    release.metrics = sorted(set(_METRIC.findall(everything)))
    joined = re.sub(r'"\s*\n\s*f?"', "", everything)  # Texts that are wrapped in the source
    marks = {mark for _, each in MARKS for mark in each}
    release.start_lines = sorted(mark for mark in marks if mark in joined)
    return release


def registered(registry: str) -> Iterator[tuple[str, str]]:
    """Yield each architecture with its class."""
    tables = [node for node in ast.walk(ast.parse(registry)) if isinstance(node, ast.Dict)]
    for key, value in (row for each in tables for row in zip(each.keys, each.values, strict=True)):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
            yield ast.literal_eval(key), ast.literal_eval(value.elts[-1])


@dataclass(frozen=True)
class ModelClasses:
    """The classes of models by name. interfaces.py has what is true of no model in particular."""

    classes: dict[str, ast.ClassDef]

    @classmethod
    def of(cls, sources: dict[str, str]) -> ModelClasses:
        files = [name for name in sources if "/models/" in name and "/interfaces.py" not in name]
        nodes = [node for name in sorted(files) for node in ast.walk(ast.parse(sources[name]))]
        return cls({node.name: node for node in nodes if isinstance(node, ast.ClassDef)})

    def lineage(self, name: str) -> Iterator[ast.ClassDef]:
        """Yield a class and its bases."""
        if name in self.classes:
            yield self.classes[name]
            for base in self.classes[name].bases:
                yield from self.lineage(base.id if isinstance(base, ast.Name) else "")

    def value(self, attribute: str, name: str) -> Any:
        """Return a class attribute that is a literal, or that of another class; None without."""
        for node in (each for owner in self.lineage(name) for each in owner.body):
            if isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name) and target.id == attribute:
                    other = node.value.value if isinstance(node.value, ast.Attribute) else None
                    if isinstance(other, ast.Name):
                        return self.value(attribute, other.id)
                    return default_of(node.value)
        return None

    def adapted_tables(self, name: str) -> set[str]:
        """Return which tables adapters change (`embedding_modules`): those that the class says,
        else those of the language models that it names."""
        own = self.value("embedding_modules", name)
        if own is not None:
            return set(own.values())
        nodes = [each for owner in self.lineage(name) for each in ast.walk(owner)]
        named = {each.id for each in nodes if isinstance(each, ast.Name)}
        named |= {str(each.value) for each in nodes if isinstance(each, ast.Constant)}
        inner = [self.value("embedding_modules", each) or {} for each in named]
        return {table for tables in inner for table in tables.values()}


def parsers(sources: dict[str, str], path: str) -> list[str]:
    keys = r'(?m)^    "([\w.-]+)": \('
    return sorted(set(re.findall(keys, sources.get(path, ""))))


def literals(sources: dict[str, str], name: str) -> list[str]:
    """Return the values of `NAME = Literal[...]`."""
    for text in sources.values():
        found = re.search(rf"(?m)^{name}(?:: \w+)? = Literal\[(.*?)\]", text, re.DOTALL)
        if found:
            return sorted(re.findall(r'"([^"]+)"', found[1]))
    return []


Classes = dict[str, dict[str, Any]]


def configuration_classes(sources: dict[str, str]) -> Classes:
    """Map classes of vllm/config and of the command line to the defaults of their fields."""
    found: Classes = {}
    for name, text in sources.items():
        if name.startswith("vllm/config/") or _ARGUMENTS.match(name):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    found[node.name] = fields_of(node)
    return found


def fields_of(node: ast.ClassDef) -> dict[str, Any]:
    return {
        each.target.id: default_of(each.value)
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def default_of(node: ast.expr | None) -> Any:
    """Return a literal, the default in `field(default=...)`, or "?" for one that is computed."""
    if isinstance(node, ast.Call):
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "default" in given:
            return default_of(given["default"])
        return "?"
    try:
        value = ast.literal_eval(node) if node else "?"
    except ValueError:
        return "?"
    return value if isinstance(value, str | int | float | bool | list | dict | None) else "?"


def flags_in(tree: ast.Module, classes: Classes) -> Iterator[tuple[str, Any]]:
    """Yield the flags that a file adds to the parser of `vllm serve`, with their defaults."""
    of_variable = dict(argument_classes(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
            for name, default in classes[node.name].items():
                yield name.replace("_", "-"), default
        elif isinstance(node, ast.FunctionDef):
            for call in calls_of(node, "add_argument"):
                for argument in call.args:
                    flag = argument.value if isinstance(argument, ast.Constant) else None
                    if isinstance(flag, str) and flag.startswith("--"):
                        yield flag[2:], default_in(call, of_variable, classes)


def argument_classes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield `x_kwargs = get_kwargs(Class)` as the two names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            named = isinstance(call.func, ast.Name) and call.func.id == "get_kwargs"
            if named and isinstance(target, ast.Name) and isinstance(call.args[0], ast.Name):
                yield target.id, call.args[0].id


def calls_of(node: ast.AST, method: str) -> Iterator[ast.Call]:
    for each in ast.walk(node):
        if (
            isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == method
        ):
            yield each


def default_in(call: ast.Call, of_variable: dict[str, str], classes: Classes) -> Any:
    """Return the default of `add_argument("--x", **y_kwargs["x"])` or of `default=...`."""
    for keyword in call.keywords:
        value = keyword.value
        if keyword.arg == "default":
            return default_of(value)
        if keyword.arg is None and isinstance(value, ast.Subscript):
            owner, key = value.value, value.slice
            if isinstance(owner, ast.Name) and isinstance(key, ast.Constant):
                fields = classes.get(of_variable.get(owner.id, ""), {})
                return fields.get(str(key.value), "?")
    return "?"


def going(sources: dict[str, str], flags: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield flags, and values of flags, that the sources call deprecated, with the release that is
    said to remove them; empty if none is said."""
    known = set(flags)
    for text in sources.values():
        if "deprecated" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            said = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(said, str) or "deprecated" not in said or len(said) > 600:
                continue
            subject = said.partition("deprecated")[0]
            removal = _REMOVAL.search(said)
            for flag in _GOING.findall(subject):
                if removal and flag[2:] in known:
                    yield flag[2:], removal[1]
            value = re.search(r"(?:[Tt]he )?[\"']?\b(lm-format-enforcer|kv_both)\b", subject)
            if value:
                yield value[1], removal[1] if removal else ""


if __name__ == "__main__":
    sys.exit(main())
