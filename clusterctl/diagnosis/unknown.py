"""Describe failures that no rule covers: the exception without its wrappers, the part that raised
it, what was running, and the settings that this part reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from clusterctl.diagnosis.kinds import FailureKind, kind_of
from clusterctl.diagnosis.parts import (
    COMPILING,
    NO_PART,
    VLLM,
    Part,
    part_of,
    running_in,
)
from clusterctl.diagnosis.prefix import (
    GRAVE,
    GRAVE_PREFIX,
    HARMLESS,
    MILD,
    OF_VLLM,
    PREFIX,
    TAG,
    TELLING,
    body_of,
    with_indentation,
)
from clusterctl.diagnosis.rules import Pattern, Rule
from clusterctl.diagnosis.settings import MOST_FLAGS, named_in, read_by, settings_in

UNKNOWN, REFUSED, REQUEST = "unknown-cause", "setting-refused", "request-failed"
"""Ids of causes that no rule names."""

WRAPS = "The above exception was the direct cause of"
HANDLES = "During handling of the above exception"
"""What stands between two tracebacks of one failure."""

_LONGEST = 300  # characters of a message
_MOST_OF_KEYS = 20  # lines in which pydantic lists what it refuses
_MOST_BEFORE = 2  # lines before a failure that are shown

# How the C library ends a process whose heap or stack is damaged
_DAMAGED = (
    r"double free|free\(\): invalid|corrupted size|stack smashing|malloc\(\): |corrupted double|"
    r"free\(\): double"
)
TRIGGER = re.compile(
    r"error|exception|critical *\||\.exc\.|\.empty|fatal|aborted|core dumped|segfault|"
    r"segmentation fault|panicked at|nccl warn|\.(?:h|cc|cu):\d* warn |assertion|cudbg_|"
    rf"cuda failure|failed|non-zero status|null value|terminate called|{_DAMAGED}|, input_value="
)
"""Texts of which a line of a failure has one, in small letters."""

_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*")
# What Ray, NCCL and vLLM mark as an error and go on without, and how Slurm ends a log
_NO_MATTER = re.compile(
    r"exporter agent|is over \d+% full|srun: error: .*Exited with|Cannot use FA version|"
    r"ras/client_support|response failed classification="
)
_SOURCE = re.compile(r"\s*(?:raise|except|return|class|def|if|assert|from|import|with)\b")

_CLASS = r"(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception)|Exception)"
_DOTTED = r"(?:[a-z_]\w*\.)+(?:[A-Z]\w*|exc\.\w+)"
_RAISED = re.compile(
    rf"(?P<name>{_CLASS}|{_DOTTED})(?:\[\w+\])?"
    r"(?:: (?P<message>.*)|\((?P<quoted>[\"'].*)\)\s*$|:?\s*$)"
)
_EMBEDDED = re.compile(
    rf"(?:: |with |exception |error )(?P<name>{_CLASS})"
    r"(?:: (?P<message>.+)|\((?P<quoted>[\"'].*)\)$)"
)
_PYDANTIC = re.compile(r"\s*(?:Value|Assertion) error, (?P<message>.+?)(?: \[type=.*)?$")
# What pydantic says of a key of a class of settings, in lines of their own
_OF_KEY = re.compile(r"\s*(?P<message>\S.*?) \[type=\w+, input_value=.*$")
_SETTINGS = re.compile(r"validation errors? for (?P<name>\w*(?:Config|Args))$")
_KEY = re.compile(r"[\w.]+")
_ARGPARSE = re.compile(
    r"(?:\S*/)?(?:vllm|ray|serve|[\w-]+\.py|python\S* -m \S+)(?: [\w-]+){0,2}: error: "
    r"(?P<message>.+)"
)
_COMPILER = re.compile(
    r"(?:\S+(?::\d+(?::\d+)?|\(\d+\)): (?:fatal )?error:?|"
    r"(?:nvcc|ptxas|nvlink) (?:fatal|error) *:) (?P<message>.+)"
)
# How libraries in C and C++ say it, such as NVSHMEM and UCX: file.cpp:418: what failed
_NATIVE = re.compile(
    r"\.(?:c|cc|cpp|cu|h|hpp)(?::\w+)?:\d+[:\]]? .*"
    r"(?:\bERROR\b|\bfailed\b|\berror\b|non-zero status|NULL value)"
)
_DIED = re.compile(
    r"Segmentation fault|Segfault encountered|core dumped|Fatal Python error: |"
    rf"{_DAMAGED}|terminate called |panicked at|^Aborted\b|Check failed: |Assertion\b.* failed|"
    r"Assertion failed|LLVM ERROR|CUDBG_EXCEPTION|Cuda failure \d|CUDA error \d|"
    r"^(?:CUDA|HIP|MUSA) error(?:: | \()|HIP failure|\bFATAL ERROR\b|"
    r"\.(?:cc?|cpp|cuh?|h):\d+: .*\bAssertion\b"
)
_BARE = re.compile(
    r"(?:[\w./:\[\]-]+ ){0,3}(?:(?:fatal )?error|failed|failure)\b[^(=]*:|"
    r"(?:[\w./\[\]-]+: )?(?:error|failed|failure) (?:\w+ ){2}",
    re.IGNORECASE,
)
# NCCL, which left out its name until 2.4
_OF_NCCL = re.compile(r"NCCL WARN|\.(?:h|cc|cu):\d+ WARN ")
# PyTorch, below the message of an exception in C++; often all that a watchdog's end leaves
_RAISED_IN_C = re.compile(r"Exception raised from (?P<where>\S+ at \S+) \(most recent call first")
# An executor that tells what a rank of its raised
_PASSED_ON = re.compile(
    r"Worker failed with error '(?P<error>.+?)(?:', please check the stack trace|'?$)"
)
# What Python writes before an exception that it ignores
_IGNORED = re.compile(
    r"Error in (?:site|user)customize|Error processing line \d+ of|Exception ignored "
)
_OF_TRACEBACK = re.compile(r"\s|Traceback \(most|$")
_HEADLINE = re.compile(
    r"Traceback \(most|Error executing method |  File \"|(?:AsyncLLM )?output_handler failed"
)
# What only leads over to a traceback or is a part of one
_LEADS_OVER = re.compile(
    r"Traceback \(most|  File \"|WorkerProc (?:hit|failed)|EngineCore (?:failed|encountered)|"
    r"output_handler failed|Error executing method |\] {2,}\S"
)
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>\S+))?')
# As people shorten it in their notes
_SHORT_FRAME = re.compile(r"(?P<path>[\w./-]+\.py):(?P<line>\d+) +(?:in )?(?P<function>[\w.<>]+)")
_PACKAGES = re.compile(r".*(?:site|dist)-packages/")
# An exception that has only a name, or a number, for what a library said beside it
_SAYS_LITTLE = re.compile(
    r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$|.*(?:unhandled \w+ error|NCCL error in: |internal error|"
    r"failed with (?:exit )?(?:code|status) -?\d+|.*error code:? ?-?\d+$)"
)

# Programs try something, and what they do when it is refused is what fails.
_TRIED = frozenset({
    "KeyError", "AttributeError", "ImportError", "ModuleNotFoundError", "StopIteration", "Empty",
    "IndexError", "LookupError",
})  # fmt: skip

# They report what another process raised, whose own text stands elsewhere, or an end on purpose.
_WRAPPERS = (
    "RayTaskError", "RayActorError", "RemoteTraceback", "RemoteError", "EngineDeadError",
    "ProcessRaisedException", "ProcessExitedException", "EngineGenerateError", "KeyboardInterrupt",
    "SystemExit", "CancelledError", "GeneratorExit", "ClientDisconnect", "BrokenPipeError",
    "ExceptionGroup", "ChildFailedError",
)  # fmt: skip
_WRAPPED = (
    "See root cause above", "validation error for", "validation errors for",
    "failed in the TorchScript interpreter",
)  # fmt: skip

_REFUSALS = frozenset({
    "ValueError", "ValidationError", "NotImplementedError", "AssertionError", "TypeError",
    "RuntimeError",
})  # fmt: skip
_OF_REQUESTS = (
    "/entrypoints/",
    "/tool_parsers/",
    "/vllm/reasoning/",
    "/starlette/",
    "/uvicorn/",
    "/fastapi/",
    "/renderers/",
    "aiohttp",
)
# What runs for a request alone, whether or not the log shows that the service is ready
_ONLY_FOR_REQUESTS = ("/starlette/", "/fastapi/", "/renderers/", "/serve/render/")
_OF_THE_ENGINE = ("/v1/engine/core", "/worker/")
_OF_THE_ENGINES_PROCESS = re.compile(r"\((?:EngineCore|\w*Worker)")
_OF_CLIENTS = frozenset({"VLLMValidationError", "VLLMClientError", "VLLMNotFoundError"})
_BROKEN_OFF = re.compile(r"assert\b|raise (?P<name>[\w.]+)\(")
_FILLED = ("output:", "log:", "error:", "follows:")  # The lines below such an exception say why


class Kind(Enum):
    """How a line shows a failure."""

    RAISED = "an exception"
    PARSED = "the refusal of a setting by a parser"
    COMPILED = "an error of a compiler"
    DIED = "the end of a process"
    SAID = "a line that speaks of an error"


@dataclass(frozen=True)
class Shown:
    """What one line shows."""

    kind: Kind
    raised: str  # the exception's class with its module; empty if it is none
    message: str

    @property
    def name(self) -> str:
        """The exception's class without its module."""
        return self.raised.rpartition(".")[2]


@dataclass(frozen=True)
class UnknownFailure:
    """A failure that no rule covers."""

    id: str
    shown: Shown
    part: Part
    running: str  # empty if the log does not show it
    place: str  # where in the code: file:line; empty if the log does not show it
    named: tuple[str, ...]  # flags and variables that the message names
    flags: tuple[str, ...]  # that the part reads
    changed: tuple[str, ...]  # since it last served, in the same log
    kind: FailureKind | None = None

    @property
    def more_follows(self) -> bool:
        """Whether the following lines, if joined to it, describe better what failed."""
        headline = self.shown.message.rstrip().lower().endswith(_FILLED)
        return self.shown.name in _TRIED or headline

    @property
    def says_little(self) -> bool:
        """Whether it only has a name for what a library said beside it."""
        return _SAYS_LITTLE.match(self.shown.message) is not None

    @property
    def cause(self) -> str:
        said = ": ".join(filter(None, (self.shown.name, self.shown.message)))
        if self.id == REFUSED:
            return f"vLLM refuses {', '.join(self.named) or 'a setting'}: {self.shown.message}"
        running = f" while {self.running}" if self.running else ""
        place = f" ({self.place})" if self.place else ""
        return f"{self._failed}{running}: {said}{place}"

    @property
    def _failed(self) -> str:
        what = "a request failed" if self.id == REQUEST else self.kind and self.kind.cause
        if not what:
            return f"{self.part.name} failed"
        return what if self.part is NO_PART else f"{what}, in {self.part.name}"

    @property
    def fix(self) -> str:
        named, read = ", ".join(self.named), ", ".join(self.flags)
        if self.id == REFUSED:
            return f"change {named or 'what the line names'} as the line says, or leave it out"
        steps = []
        if self.changed:
            steps.append(f"undo what changed since it last served ({', '.join(self.changed)})")
        if named:
            steps.append(f"change {named}, which the line names, or leave it out")
        if self.kind:
            steps.append(self.kind.fix)
        elif self.id == REQUEST:
            steps.append("change what its client sent if the line names that; the service goes on")
        elif not self.changed:
            steps.append("search the project's issues for the line, and try another release")
        if read and (self.kind is None or self.kind.reads):
            steps.append(f"this part reads {read}: leave them out one by one")
        return "; ".join(steps)

    @property
    def rule(self) -> Rule:
        at = "any" if self.id == REQUEST else "start"
        return Rule(self.id, self.cause, self.fix, (self.pattern,), at)

    @property
    def pattern(self) -> Pattern:
        level = "said" if self.shown.kind is Kind.SAID else "raised"
        if self.id == REQUEST:
            level = "request"
        elif self.kind and level == "raised":
            level = self.kind.level
        return Pattern(
            text="",
            of="",
            example="",
            level=level,
            cause=self.cause,
            fix=self.fix,
            likely=self.kind is not None or self.shown.kind is not Kind.PARSED,
            more_follows=self.more_follows,
            says_little=self.says_little,
        )


@dataclass(frozen=True)
class Start:
    """What is known about the start of vLLM that a line belongs to."""

    arguments: str = ""  # the line with its settings
    release: str = ""  # of vLLM
    serves: bool = False  # it was ready
    before: Start | None = None  # the one that served last

    @property
    def changed(self) -> tuple[str, ...]:
        """What differs from the last successful start."""
        if self.before is None or self.serves:
            return ()
        old, new = self.before.release, self.release
        releases = [f"vLLM {old} is now {new}"] if old and new and old != new else []
        then, now = (settings_in(one.arguments) for one in (self.before, self))
        names = sorted(then.keys() | now.keys()) if then and now else ()
        flags = [f"--{name.replace('_', '-')}" for name in names if then.get(name) != now.get(name)]
        return (*releases, *flags[:MOST_FLAGS])


def may_fail(text: str) -> bool:
    """Whether a line may show a failure, or joins two tracebacks of one."""
    if not TRIGGER.search(text.lower()):
        return False
    prefix = PREFIX.match(text)
    return not (prefix and prefix["level"] in HARMLESS)


def overcome(text: str) -> bool:
    """Whether a line tells an exception after which its program went on."""
    prefix = PREFIX.match(text)
    if prefix is None or prefix["level"] not in HARMLESS:
        return False
    return _RAISED.match(text[prefix.end() :].strip()) is not None


def failure_in(
    text: str, before: Sequence[bytes], start: Start, *, alone: bool
) -> UnknownFailure | None:
    """Return the failure that a line shows, if it does. `before`: the lines up to this one;
    `alone`: the start met nothing else yet, beside which a line that only speaks of an error is
    none.

    Once the service is ready, the API server's lines may concern a single request, and a line is
    not a failure that has neither an exception nor the end of a process.
    """
    shown = _shown(text)
    if shown is None or (start.serves and shown.kind not in {Kind.RAISED, Kind.DIED}):
        return None
    if shown.kind is Kind.RAISED and _is_ignored(before):
        return None
    if shown.kind is Kind.SAID and not alone:
        return None
    if _OF_KEY.match(body_of(text)) and not _PYDANTIC.match(body_of(text)):
        key = _key_in(before)
        if not key:
            return None
        shown = replace(shown, message=f"{key}: {shown.message}")
    wraps = shown.name.startswith(_WRAPPERS) or (
        shown.name == "ValidationError" and not shown.message
    )
    if wraps or shown.name.endswith("Warning"):
        return None
    if any(words in shown.message for words in _WRAPPED):
        return None
    if shown.kind is Kind.RAISED and _SAYS_LITTLE.match(shown.message):
        shown = replace(shown, message=f"{_told_above(text, before)}{shown.message}")

    frames = list(_frames(text, before)) if shown.kind is Kind.RAISED else []
    crashed = _FRAME.search(text) if shown.kind is Kind.DIED else None
    if crashed:
        frames = [_Frame(crashed["path"], crashed["line"], crashed["function"] or "", "")]
        shown = replace(shown, message=shown.message.partition(' File "')[0])
    paths = [frame.path for frame in frames]
    part = _part(shown, frames, text, before)
    earlier = [] if start.serves else [raw.decode("utf-8", "replace") for raw in before]
    running = running_in([frame.function for frame in frames], earlier)
    if frames and shown.kind is Kind.RAISED and not shown.message:
        shown = replace(shown, message=frames[0].source)

    identity = UNKNOWN
    if shown.kind is Kind.PARSED or _is_refusal(shown, running, paths, start):
        identity = REFUSED
    elif _of_a_client(shown.name, text, paths) or _of_a_request(paths, start):
        identity = REQUEST
    place = frames[0].place if frames else ""
    kind = _kind(shown, frames)
    of_value = kind if identity == UNKNOWN else None
    named = named_in(part, shown.message, start.arguments, of_value)
    if identity == UNKNOWN and kind:
        identity = kind.id
    return UnknownFailure(
        identity,
        shown,
        part,
        running,
        place,
        named,
        read_by(part, start.arguments, named),
        start.changed,
        kind if identity not in {REFUSED, REQUEST} else None,
    )


def silence_after(text: str, before: Sequence[bytes], minutes: int) -> UnknownFailure | None:
    """Return that a start that was under way wrote nothing for long. `before`: lines up to it."""
    running = running_in([], [raw.decode("utf-8", "replace") for raw in before])
    if not running:
        return None
    shown = Shown(Kind.SAID, "", f"nothing was written for {minutes} minutes after this line")
    part = part_of([], "", text, text)
    return UnknownFailure(
        UNKNOWN, shown, VLLM if part is NO_PART else part, running, "", (), (), ()
    )


def crashed_in(end: str, text: str) -> bool:
    """Whether a line is the innermost frame of the process whose end another line shows."""
    same = TAG.findall(end) == TAG.findall(text)
    if not (same and _DIED.search(end) and _FRAME.search(text)) or _FRAME.search(end):
        return False
    shown = _shown(end)  # the frame after an exception of Python is one of the next traceback
    return shown is not None and shown.kind is Kind.DIED


def broken_off(before: Sequence[bytes]) -> str:
    """Return the exception that was raised where a log ends inside of a traceback; empty if it does
    not end there, or the line of code does not tell."""
    lines = [raw.decode("utf-8", "replace").rstrip() for raw in before]
    told = [line for line in lines if set(body_of(line)) - {"^", "~"}]
    if len(told) < 2 or not _FRAME.search(told[-2]):
        return ""
    prefix, code = PREFIX.match(told[-1]), _BROKEN_OFF.match(body_of(told[-1]))
    if code is None:
        return ""
    return f"{told[-1][: prefix.end() if prefix else 0]}{code['name'] or 'AssertionError'}"


def warnings_before(text: str, before: Sequence[bytes]) -> list[int]:
    """Return the indices of the last warnings and errors of the same process before a failure, and
    before its traceback if it has one."""
    own = TAG.findall(text)
    lines = [raw.decode("utf-8", "replace") for raw in before]
    same = [at for at, line in enumerate(lines) if line != lines[-1] and TAG.findall(line) == own]
    begins = [at for at in same if "Traceback (most recent" in lines[at]]

    found: list[int] = []
    for at in same:
        line = lines[at]
        prefix = PREFIX.match(line)
        grave = prefix is not None and prefix["level"] in TELLING
        told = grave or _OF_NCCL.search(line) or _NATIVE.search(line) or _DIED.search(line)
        if told and at < min(begins[-1:], default=len(lines)) and not _LEADS_OVER.search(line):
            found.append(at)
    return found[-_MOST_BEFORE:]


def _shown(text: str) -> Shown | None:
    prefix = PREFIX.match(text)
    level = prefix["level"] if prefix else None
    body = text[prefix.end() :] if prefix else text
    if _SOURCE.match(body) or _NO_MATTER.search(body) or _IGNORED.match(body):
        return None

    line = _REPEATED.sub("", body.strip())
    if match := _PYDANTIC.match(line) or _ARGPARSE.match(line) or _OF_KEY.match(line):
        return _cut(Kind.PARSED, "", match["message"])
    if match := _RAISED.match(line):
        passed_on = _PASSED_ON.match(match["message"] or "")
        if passed_on and (inner := _RAISED.match(passed_on["error"])):
            return _raised(inner)
        return _cut(Kind.RAISED, "", passed_on["error"]) if passed_on else _raised(match)

    of_program, harmless = GRAVE_PREFIX.match(text), MILD.search(text)
    embedded = None if of_program or harmless else _EMBEDDED.search(line)
    if embedded:
        return _raised(embedded)
    if match := _RAISED_IN_C.match(line):
        return _cut(Kind.SAID, "", f"an exception was raised from {match['where']}")
    if match := _COMPILER.match(line):
        return _cut(Kind.COMPILED, "", match["message"])
    if _DIED.search(line):
        return _cut(Kind.DIED, "", line)

    grave = (level in GRAVE or of_program) and body[:1] not in {"", " "}
    spoken = (_BARE.match(line) or _NATIVE.search(line)) and not harmless
    if _OF_NCCL.search(text) or ((spoken or grave) and not _HEADLINE.match(body)):
        return _cut(Kind.SAID, "", line)
    return None


def _raised(match: re.Match[str]) -> Shown:
    if match["quoted"]:  # V0's engine says so before the traceback, which tells what it wraps
        return _cut(Kind.SAID, match["name"], match["quoted"][1:-1])
    return _cut(Kind.RAISED, match["name"], match["message"] or "")


def _told_above(text: str, before: Sequence[bytes]) -> str:
    """Return what a library wrote in the line above an exception that only has a name for it, with
    a colon; empty if that is a line of a traceback or of a logger."""
    lines = [raw.decode("utf-8", "replace") for raw in list(before)[-2:-1]]
    if not lines or TAG.findall(lines[0]) != TAG.findall(text):
        return ""
    prefix = PREFIX.match(lines[0])
    body = lines[0][prefix.end() if prefix else 0 :].rstrip()
    told = body[:1].isspace() or (prefix and prefix["level"]) or _HEADLINE.match(body)
    return "" if not body or told or _shown(lines[0]) else f"{body[:_LONGEST]}: "


def _logged_above(before: Sequence[bytes]) -> str:
    """Return the line above the last one if a logger wrote it of an error: it has the module that
    tells of the exception."""
    above = "".join(raw.decode("utf-8", "replace") for raw in list(before)[-2:-1])
    prefix = PREFIX.match(above)
    return above if prefix and prefix["level"] in GRAVE else ""


def _is_ignored(before: Sequence[bytes]) -> bool:
    """Whether Python wrote that it ignores the exception of the last line."""
    bodies = (with_indentation(raw.decode("utf-8", "replace")) for raw in list(before)[-2::-1])
    headline = next((body for body in bodies if not _OF_TRACEBACK.match(body)), "")
    return _IGNORED.match(headline) is not None


def _part(shown: Shown, frames: Sequence[_Frame], text: str, before: Sequence[bytes]) -> Part:
    paths = [frame.path for frame in frames]
    module = f"/{shown.raised.replace('.', '/')}" if "." in shown.raised else ""
    part = part_of(paths, module, text, shown.message, frames[0].source if frames else "")
    if part is not NO_PART:
        return part
    if shown.kind is Kind.COMPILED:
        return COMPILING
    if OF_VLLM.search(text):
        return VLLM
    alone = shown.kind is Kind.RAISED and not frames
    return part_of([], "", _logged_above(before), "") if alone else NO_PART


def _key_in(before: Sequence[bytes]) -> str:
    """Return which key of which class of settings pydantic's line is about, from the lines before
    it; empty if they do not say."""
    lines = [body_of(raw.decode("utf-8", "replace")) for raw in list(before)[-_MOST_OF_KEYS:-1]]
    classes = [match["name"] for match in map(_SETTINGS.search, lines) if match]
    if not classes or not _KEY.fullmatch(lines[-1]):
        return ""
    return f"{lines[-1]} of {classes[-1]}"


def _cut(kind: Kind, name: str, message: str) -> Shown:
    return Shown(kind, name, message[:_LONGEST].strip())


def _kind(shown: Shown, frames: Sequence[_Frame]) -> FailureKind | None:
    """Return the kind of a failure by what it says, else by the function that misses a name."""
    said = ": ".join(filter(None, (shown.name, shown.message)))
    return kind_of(said) or (kind_of(f"{shown.name} in {frames[0].function}") if frames else None)


def _is_refusal(shown: Shown, running: str, paths: Sequence[str], start: Start) -> bool:
    settings = running == "reading the settings" and not start.serves
    by_vllm = any(one in path for path in paths[:1] for one in ("/vllm/", "/pydantic"))
    return settings and by_vllm and shown.name in _REFUSALS and bool(shown.message)


def _of_a_client(name: str, text: str, paths: Sequence[str]) -> bool:
    """Whether it is an exception that vLLM only raises for a client's mistake, which the API server
    answers; the engine ends by it."""
    inside = any(one in path for path in paths for one in _OF_THE_ENGINE)
    return name in _OF_CLIENTS and not inside and not _OF_THE_ENGINES_PROCESS.search(text)


def _of_a_request(paths: Sequence[str], start: Start) -> bool:
    inside = any(one in path for path in paths for one in _OF_THE_ENGINE)
    among = _OF_REQUESTS if start.serves else _ONLY_FOR_REQUESTS
    return not inside and any(one in path for path in paths for one in among)


@dataclass(frozen=True)
class _Frame:
    """A frame of a traceback."""

    path: str
    line: str
    function: str
    source: str  # the line of code; empty if the log lacks it

    @property
    def place(self) -> str:
        """The file, relative to the directory of packages, and the line; of code without a file,
        the function."""
        if self.path == "<unknown>":
            return self.function
        return f"{_PACKAGES.sub('', self.path)}:{self.line}"


def _frames(text: str, before: Sequence[bytes]) -> Iterator[_Frame]:
    """Yield the frames of the traceback that ends with this line, innermost first, only of its own
    process, since ranks write concurrently."""
    own, source = TAG.findall(text), ""
    for raw in list(before)[-2::-1]:
        line = raw.decode("utf-8", "replace")
        if TAG.findall(line) != own:
            continue
        if "Traceback (most recent" in line or WRAPS in line or HANDLES in line:
            return
        if frame := _FRAME.search(line) or _SHORT_FRAME.fullmatch(line.strip()):
            yield _Frame(frame["path"], frame["line"], frame["function"] or "", source)
        elif prefix := PREFIX.match(line):
            code = line[prefix.end() :].strip()
            source = source if set(code) <= {"^", "~"} else code
