"""What the rules of `diagnose` miss in a release of vLLM, read from its wheel:

    python -m scripts.new_failures vllm-NEW.whl [vllm-OLD.whl]

Only sources are read, nothing is imported or installed. Prints the wordings of rules that the
release does not have any more, the exceptions that `diagnose` would pass over, the information and
warnings that it would take for failures of a start that serves, and how many errors without a rule
the release raises or logs where services start, by their part. With an older wheel, prints those
that this one did not have, as entries to complete for clusterctl/diagnosis/rules.yaml. `diagnose`
names errors without a rule, too; a rule is worth its lines where it knows why, or what to do.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusterctl.diagnosis.parts import part_of
from clusterctl.diagnosis.rules import Pattern, rules, without_digits
from clusterctl.diagnosis.verdict import diagnose

# Where services start, or ranks work together
STARTS = re.compile(
    r"vllm/(config|engine/arg_utils|platforms|distributed|executor|v1/(engine|executor|worker|core)"
    r"|model_executor/(model_loader|warmup)|device_allocator|entrypoints/(cli|openai/api_server))\b"
)
_LOGGED = frozenset({"error", "critical", "exception"})
_HARMLESS = {
    f"{level}{once}": level.upper() for level in ("info", "warning") for once in ("", "_once")
}
_ERROR = "(EngineCore pid=7) ERROR 01-02 03:04:05 [core.py:1] {}"
_BEGINS = "(EngineCore pid=7) INFO 01-02 03:04:00 [core.py:1] Initializing a V1 LLM engine (v0.0.0)"
_SLOT = re.compile(r"%[-+ #0]*[\d.*]*[a-zA-Z]|\{[^{}]*\}")
_GAP = "..."
_LEAST = 20  # letters of a message; a shorter one tells no failures apart
_RELEASE = re.compile(r"vllm-(\d+(?:\.\d+)*)")


@dataclass(frozen=True)
class Message:
    """A message in the sources; `...` stands for what the code fills in."""

    text: str
    path: str  # in the wheel

    @property
    def example(self) -> str:
        return self.text.replace(_GAP, "7")

    @property
    def part(self) -> str:
        return part_of([f"/{self.path}"], "", "", self.text).name


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print(__doc__, file=sys.stderr)
        return 2
    wheel = Path(arguments[0])
    match = _RELEASE.search(wheel.name)
    release = match[1] if match else "?"
    gone = list(words_that_are_gone(wheel))
    print(f"{len(gone)} wordings of rules are not in vLLM {release}:")
    for name, text in gone:
        print(f"  {name}: {text}")

    silent, sick = passed_over(wheel), taken_for_failures(wheel)
    print(f"{len(silent)} exceptions of vLLM {release} would be passed over:")
    sys.stdout.writelines(f"  {each}\n" for each in silent)
    print(f"{len(sick)} harmless lines of vLLM {release} would be taken for failures:")
    sys.stdout.writelines(f"  {each}\n" for each in sick)

    known = {each.text for each in messages(Path(arguments[1]))} if arguments[1:] else set()
    missed = without_rule(messages(wheel), known)
    print(f"{len(missed)} errors of vLLM {release} have no rule:")
    sys.stdout.writelines(entries(missed, release) if known else counts(missed))
    return 0


def counts(missed: Iterable[Message]) -> Iterator[str]:
    """Yield lines with how many messages are of each part."""
    for name, count in Counter(each.part for each in missed).most_common():
        yield f"  {count:5} {name}\n"


def entries(missed: Iterable[Message], release: str) -> Iterator[str]:
    """Yield entries for rules.yaml, each with its place as a comment."""
    for each in missed:
        entry = [{"text": each.text, "of": f"vLLM {release}", "example": each.example}]
        yield f"# {each.part}: {each.path}\n"
        yield yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=10_000)


def messages(wheel: Path) -> Iterator[Message]:
    """Yield the errors that the sources in a wheel raise or log. Raises OSError if it cannot be
    read."""
    for name, tree in _sources(wheel):
        yield from (Message(text, name) for text in dict.fromkeys(_texts(tree)))


def _sources(wheel: Path) -> Iterator[tuple[str, ast.Module]]:
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("vllm/") and name.endswith(".py"):
                yield name, ast.parse(archive.read(name))


def passed_over(wheel: Path) -> list[str]:
    """Return the exceptions, each with its place, of whose traceback `diagnose` says nothing."""
    found = []
    for name, tree in _sources(wheel):
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                continue
            kind = ast.unparse(node.exc.func)
            words = _literal(node.exc.args[0]) if node.exc.args else ""
            said, *_ = words.replace(_GAP, "7").strip().split("\n")
            raised = f"{kind}: {said}" if said else kind
            place = f'  File "/dist-packages/{name}", line {node.lineno}, in f'
            if not diagnose(
                map(_ERROR.format, ("Traceback (most recent call last):", place, raised))
            ):
                found.append(f"{name}:{node.lineno}: {raised}")
    return found


def taken_for_failures(wheel: Path) -> list[str]:
    """Return the lines that a start may log and yet serve, and that `diagnose` takes for failures:
    those of each file in one start."""
    found = []
    for name, tree in _sources(wheel):
        said = [
            f"(EngineCore pid=7) {_HARMLESS[node.func.attr]} 01-02 03:04:05 [{name}:1] {line}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if node.func.attr in _HARMLESS and node.args
            for line in _literal(node.args[0]).replace(_GAP, "7").split("\n")
        ]
        causes = diagnose([_BEGINS, *said, "INFO:     Application startup complete."])
        found += [each.text for cause in causes for each in cause.evidence]
    return found


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        told = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(told, ast.Call) or not told.args:
            continue
        logs = isinstance(told.func, ast.Attribute) and told.func.attr in _LOGGED
        text = _literal(told.args[0]) if isinstance(node, ast.Raise) or logs else ""
        if sum(map(str.isalpha, text)) >= _LEAST:
            yield text.strip()


def _literal(node: ast.expr) -> str:
    """Return a string as far as it stands in the code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"\s+", " ", _SLOT.sub(_GAP, node.value))
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else _GAP for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return _literal(node.left) + (_literal(node.right) if isinstance(node.op, ast.Add) else "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _literal(node.func.value)  # "...".format()
    return ""


def without_rule(new: Iterable[Message], known: set[str]) -> list[Message]:
    """Return the messages of starts that no rule recognises."""
    patterns = [pattern for rule in rules() for pattern in rule.seen]
    return [
        each
        for each in new
        if STARTS.match(each.path) and each.text not in known and not _has_rule(each, patterns)
    ]


def _has_rule(message: Message, patterns: Iterable[Pattern]) -> bool:
    small = message.example.lower()
    return any(
        each.anchor in small and each.expression.search(message.example) for each in patterns
    )


def words_that_are_gone(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield the rule and the text of each wording of vLLM that its sources do not have."""
    strings = {
        without_digits(node.value).lower()
        for _, tree in _sources(wheel)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    texts = "\n".join(strings)
    for rule in rules():
        for pattern in rule.seen:
            # What vLLM fills in by % stands in the string where the anchor may begin or end.
            words = [word for word in _SLOT.split(pattern.anchor) if word.strip()]
            if pattern.of.startswith("vLLM") and not all(word in texts for word in words):
                yield rule.id, pattern.text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
