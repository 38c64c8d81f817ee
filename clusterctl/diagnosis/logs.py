"""Search one log for failures, line by line, in bounded memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import BinaryIO

from clusterctl.diagnosis.line import (
    LONGEST_LINE,
    first_within,
    goes_on,
    last_silence,
    plain,
    time_of,
    when,
    without_escapes,
    without_guesses,
)
from clusterctl.diagnosis.parts import running_in
from clusterctl.diagnosis.prefix import body_of
from clusterctl.diagnosis.rules import LEVELS, Pattern, Rule, rules, without_digits
from clusterctl.diagnosis.unknown import (
    HANDLES,
    TRIGGER,
    WRAPS,
    Kind,
    Start,
    broken_off,
    crashed_in,
    failure_in,
    may_fail,
    overcome,
    silence_after,
    warnings_before,
)
from clusterctl.node.attempt import stage_of

CONTEXT = 150
"""Lines before a line in which a rule looks for what must or must not be there: more than a
traceback has."""

MOST = 100
"""Findings of a rule that are kept of a log: the first ones, which decide, and the last one."""

REQUESTS_COUNT = timedelta(hours=1)
_JUST_BEFORE = timedelta(minutes=1)
_SILENT = timedelta(minutes=30)  # longer than healthy starts are

# How many shapes of lines are remembered, as hashes, so that repeated lines are searched once
_MOST_SHAPES = 200_000

# vLLM begins, so what an earlier start met is not overcome by this one. A start prints one or more
# of these, in this order: the next begins with the one that this began with, or one before that.
_STARTS = (b"vLLM API server version", b"non-default args:", b"Initializing a V1 LLM engine")
_ARGUMENTS = 1  # of them, which has the settings
# vLLM serves, or a script got its answers: what this start met was overcome.
# Logs of stdout alone lack what the HTTP server writes, and begin to serve with vLLM's own lines.
_READY = (
    b"Application startup complete",
    b"Uvicorn running on",
    b"Starting vLLM server on",
    b"Processed prompts: 100%",
)
_WORKS = (b"Avg prompt throughput", b"request completed")  # the second of Dynamo

# A signal from outside ends a service: what its processes say of each other's end is no failure.
_STOP = b"[shutdown] API server: shutdown triggered"
# The engine alone is asked to end, and ends its ranks: a service that goes on has failed.
_ENGINE_STOPS = (b"Shutdown initiated (timeout=", b"[shutdown] EngineCore: start mode=")

# Ray runs: what its programs met until then was overcome.
_RAY_RUNS = b"Ray runtime started"

_PROGRESS = (b"%|", b"finish build [")  # bars, and AMD's kernels that are compiled

_RELEASE = re.compile(
    rb"(?:vLLM API server version|V1 LLM engine \(v|vLLM version:?) *v?(\d+\.\d+(?:\.\d+)?)"
)

# How a line ends whose message stands in the next one, and where the frames of a crash stand
_ANNOUNCE = (":", " with error", " ERROR")
_LOGGED_AT = re.compile(r"\[[\w./]+\.py:\d+\]")
_ADDS = ("what():", "Search for `hip")  # the second tells that an error of CUDA is one of ROCm
_FRAMES_FOLLOW = 6  # lines

_BLOCK = 4096  # lines
_INDENTED = " " * 8  # deeper than the lines of a traceback

_DIGITS = b"0123456789"
_MARKS = (*_STARTS, *_READY, _STOP, *_ENGINE_STOPS, _RAY_RUNS)
_MARKED = re.compile(b"|".join(map(re.escape, (*_MARKS, *_WORKS))))
_MARKED_SHAPE = re.compile(b"|".join(re.escape(mark.translate(None, _DIGITS)) for mark in _MARKS))
_RAY_PREFIX = re.compile(r"\([\w.:+ =-]*?pid=\d+, ip=([\w.:]+)\)")

# What a log says may stand in a fix, which people give to a shell, if it is a number or a name.
_WORD = re.compile(r"[\w.,:/@+-]+|a host")


@dataclass(frozen=True)
class Evidence:
    """The line that shows a failure."""

    file: str
    line: int  # from 1
    text: str
    host: str  # a name or an address; empty if it is not known


@dataclass(frozen=True)
class Finding:
    """A failure in a log."""

    rule: Rule
    pattern: Pattern
    cause: str
    fix: str
    evidence: Evidence
    before: tuple[Evidence, ...]  # warnings and errors before it, if no rule knows it
    time: str  # `month-day hours:minutes:seconds` as the log has it; empty if it is not known
    over: bool = False  # it was a failure, and is none at the time of the question

    @property
    def id(self) -> str:
        return self.rule.id

    @property
    def lasts(self) -> bool:
        """Whether it still counts if the start succeeds."""
        between = self.pattern.level == "link"  # ranks tried again, and found each other
        return self.rule.at == "any" and not self.pattern.passing and not between

    @property
    def ends_only(self) -> bool:
        """Whether it says no more than that the start was ended, or was not ready yet."""
        return self.pattern.passing and self.pattern.level == "said"

    def gives_way(self, joined: bool) -> bool:
        """Whether the next unknown failure describes better what failed."""
        return self.pattern.level == "said" or (joined and self.pattern.more_follows)

    @property
    def weight(self) -> tuple[int, bool, bool]:
        """The finding's rank: the lower, the more decisive, regardless of time."""
        # Of failures that differ in kind alone, the first by time counts.
        likely = self.pattern.likely and not self.is_read
        return LEVELS[self.pattern.level], likely, not self.time

    @property
    def is_read(self) -> bool:
        """Whether no rule knows it."""
        return not self.pattern.text


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, cut to a length that bounds memory."""
    whole = True
    while piece := stream.readline(4 * LONGEST_LINE):
        if whole:
            yield piece
        whole = piece.endswith(b"\n")


def search(
    lines: Iterable[bytes], file: str, host: str = "", *, last_start: bool = False
) -> list[Finding]:
    """Return the failures in a log, in order:

    each cause once per start of vLLM, and at most MOST per rule. Warnings of starts that succeeded
    are left out; with `last_start`, so is everything from earlier starts.
    """
    return _Search(file, host, last_start).run(lines)


def search_to_end(lines: Iterable[bytes], file: str) -> tuple[list[Finding], str]:
    """Return the failures in a log, and what was running at its end if its last start had neither
    failed nor begun to serve; empty otherwise."""
    each = _Search(file, "", last_start=False)
    return each.run(lines), each.unfinished


class _Search:
    """The search of one log."""

    def __init__(self, file: str, host: str, last_start: bool) -> None:
        self._file, self._host, self._last_start = file, host, last_start
        self._done: dict[str, list[Finding]] = {}  # by rules, like those of the current start
        self._current: dict[str, list[Finding]] = {}
        self._before: deque[bytes] = deque(maxlen=CONTEXT)
        self._silent: set[int] = set()  # shapes of lines that cannot match and are no mark
        self._met: set[int] = set()  # shapes of this start that match, whatever their digits
        self._began = len(_STARTS)  # which mark this start began with
        self._start = Start()
        self._served: Start | None = None  # the start that served last
        self._fails = False  # lines of this block may show failures that no rule knows
        self._chained = ""  # what stands between the last traceback and this one
        self._stopped = self._engine_stopped = False  # from outside
        self._waits = False  # a line said that something takes long, and nothing came of it yet
        self._last: Finding | None = None
        self._reaches = 0  # the last line of its message
        self._number = 0  # of the line that is looked at

    @property
    def unfinished(self) -> str:
        """What was running in a start that the log does not show to have ended."""
        begun = self._began < len(_STARTS)
        if not begun or self._start.serves or self._stopped or any(self._current.values()):
            return ""
        return (
            running_in([], [raw.decode("utf-8", "replace") for raw in self._before]) or "starting"
        )

    def run(self, lines: Iterable[bytes]) -> list[Finding]:
        number, lines = 0, iter(lines)
        while block := list(islice(lines, _BLOCK)):
            shapes = _shapes(block)
            fresh = {
                shape: raw
                for raw, shape in zip(block, shapes, strict=True)
                if shape not in self._silent
            }
            if not fresh:
                number += len(block)
                self._before.extend(block[-CONTEXT:])
                continue
            there, self._fails = _there(b"".join(fresh.values()))
            for raw, shape in zip(block, shapes, strict=True):
                number += 1
                self._before.append(raw)
                if shape not in self._silent:
                    self._look(number, raw, shape, there)
        self._cut_short()
        self._end()
        return _timed(sorted((one for found in self._done.values() for one in found), key=_line))

    def _cut_short(self) -> None:
        """Keep the exception of a traceback in which the log ends, or a long silence of a start, if
        nothing failed."""
        if any(self._current.values()) or self._done:
            return
        lines, at = list(self._before), len(self._before) - 1
        if text := broken_off(lines):
            failure = failure_in(text, [*lines, text.encode()], self._start, alone=True)
        else:
            at, silence = last_silence(lines)
            if silence < _SILENT or self._start.serves or self._stopped:
                return
            minutes = int(silence.total_seconds() // 60)
            failure = silence_after(plain(lines[at]), lines[: at + 1], minutes)
        if failure:
            number = self._number - len(lines) + 1 + at
            self._found(number, plain(lines[at]), failure.rule, failure.pattern, _Values())

    def _look(
        self, number: int, raw: bytes, shape: int, there: Sequence[tuple[str, Rule, Pattern]]
    ) -> None:
        """Keep what a line shows, or remember that lines like it show nothing."""
        self._number = number
        self._mark(raw)
        if self._waits and (
            any(mark in raw for mark in _PROGRESS) or stage_of(raw.decode("utf-8", "replace"))
        ):
            self._went_on()
        if shape in self._met:
            return

        text = plain(raw)
        if "causes" in text or "reasons" in text:
            text = without_guesses(text)
        candidates = _candidates(text, there)
        known = _match(text, candidates, self._before, self._start.release)
        last = self._just_before(number)
        if known is None and last:
            for whole in _joined(last, text):
                if known := self._together(last, whole, there):
                    number, text = number - 1, whole
                    break
        if known and overcome(text):
            return
        if known and known[1].level != "report":
            self._drop_what_leads_to(text)
        alike = not any(pattern.tells_alike_apart for _, pattern in candidates)
        if known is None and self._fails and may_fail(text):
            if self._chain(text):
                return
            known = self._unknown(text)
            alike = alike and known is not None

        if known is None:
            if (last and self._goes_on(last, text)) or self._crashed_in(text):
                return
            marked = _MARKED_SHAPE.search(raw.translate(None, _DIGITS))
            if alike and len(self._silent) < _MOST_SHAPES and not marked:
                self._silent.add(shape)
            return
        if alike and len(self._met) < _MOST_SHAPES:
            self._met.add(shape)
        self._found(number, text, *known)

    def _just_before(self, number: int) -> Finding | None:
        """Return the last finding if it still counts and ends in the line before."""
        last = self._last
        return last if last and self._reaches == number - 1 and self._counts(last) else None

    def _counts(self, finding: Finding) -> bool:
        """Whether a finding still does: it may be of an earlier start, or overcome."""
        return finding in self._current.get(finding.id, ())

    def _together(
        self, last: Finding, whole: str, there: Sequence[tuple[str, Rule, Pattern]]
    ) -> tuple[Rule, Pattern, _Values] | None:
        """Return what two lines show together, if that is another cause than the last."""
        among = there if last.pattern.text else _patterns()
        known = _match(whole, _candidates(whole, among), self._before, self._start.release)
        if known is None or known[0].id == last.id:
            return None
        self._current[last.id].remove(last)
        return known

    def _drop_what_leads_to(self, text: str) -> None:
        """Drop the unknown failure that announced a line which a rule knows, or that a logger wrote
        at the same place before a traceback that ends with it."""
        last, place = self._last, _LOGGED_AT.search(text)
        if last is None or not last.is_read or not self._counts(last):
            return
        announced = last.evidence.line == self._number - 1 and last.evidence.text.endswith(
            _ANNOUNCE
        )
        said = last.pattern.level == "said" and place and place[0] in last.evidence.text
        if announced or said:
            self._current[last.id].remove(last)

    def _goes_on(self, last: Finding, text: str) -> bool:
        """Whether the line says what the unknown failure of the line before announced with a colon,
        which is then told with both."""
        if last.pattern.text or last.pattern.more_follows:
            return False
        more = body_of(text)
        announced = last.evidence.text.endswith(_ANNOUNCE) or more.startswith(_ADDS)
        announced = announced or (more == text.strip() and goes_on(last.evidence.text, more))
        return bool(announced and more) and self._retold(last, f"{last.evidence.text} {more}")

    def _crashed_in(self, text: str) -> bool:
        """Whether the line is the innermost frame of the process that ended a few lines before,
        which is then told with it."""
        last = self._last
        if last is None or last.pattern.text or self._number - last.evidence.line > _FRAMES_FOLLOW:
            return False
        if not crashed_in(last.evidence.text, text) or not self._counts(last):
            return False
        return self._retold(last, f"{last.evidence.text} {body_of(text)}")

    def _retold(self, last: Finding, whole: str) -> bool:
        """Tell the last finding with more than its line; false if that shows no failure."""
        failure = failure_in(whole, list(self._before)[:-1], self._start, alone=True)
        if failure is None:
            return False
        self._current[last.id].remove(last)
        self._found(last.evidence.line, whole, failure.rule, failure.pattern, _Values())
        return True

    def _mark(self, raw: bytes) -> None:
        """Note that a start of vLLM begins or has become ready."""
        if not _MARKED.search(raw):
            return
        begins = next((at for at, mark in enumerate(_STARTS) if mark in raw), len(_STARTS))
        if begins < len(_STARTS):
            self._begin(begins, raw)
            return
        self._stopped = self._stopped or _STOP in raw
        self._engine_stopped = self._engine_stopped or any(mark in raw for mark in _ENGINE_STOPS)
        serves = any(mark in raw for mark in _READY)
        serves = serves or (not self._start.serves and any(mark in raw for mark in _WORKS))
        if serves:
            self._start = self._served = replace(self._start, serves=True)
        if serves or _RAY_RUNS in raw:
            for key, some in self._current.items():
                self._current[key] = [one for one in some if one.lasts]
            self._met.clear()

    def _begin(self, begins: int, raw: bytes) -> None:
        if self._began == len(_STARTS) and begins > _ARGUMENTS:
            self._began = begins  # the log lacks the first lines of this start
        elif begins <= self._began:
            if not self._last_start:
                self._end(followed=True)
            self._began, self._chained = begins, ""
            self._start = Start(release=self._start.release, before=self._served)
            self._current.clear()
            self._met.clear()
            self._waits = self._stopped = self._engine_stopped = False
        if release := _RELEASE.search(raw):
            self._start = replace(self._start, release=release[1].decode())
        if begins == _ARGUMENTS:
            self._start = replace(self._start, arguments=plain(raw))

    def _went_on(self) -> None:
        """Drop what only said that something takes long: a host without the API server never logs
        that the service is ready."""
        self._waits = False
        for key, some in self._current.items():
            self._current[key] = [one for one in some if not one.pattern.passing]
        self._met.clear()

    def _end(self, *, followed: bool = False) -> None:
        """Keep the findings of the current start. `followed`: by another, so that what only says
        how this one ended does not matter any more."""
        found = [one for some in self._current.values() for one in some]
        if followed and all(one.ends_only for one in found):
            found = []
        if self._start.serves and all(one.pattern.passing for one in found):
            found = []  # Long work says so, too.
        _keep(self._done, found)

    def _chain(self, text: str) -> bool:
        """Whether the line joins two tracebacks."""
        if WRAPS in text or HANDLES in text:
            self._chained = WRAPS if WRAPS in text else HANDLES
            return True
        return False

    def _unknown(self, text: str) -> tuple[Rule, Pattern, _Values] | None:
        """Return what a line shows that no rule knows."""
        alone = not any(self._current.values())
        failure = failure_in(text, self._before, self._start, alone=alone)
        if failure is None:
            return None
        chained, self._chained = self._chained, ""
        earlier = sorted(
            (one for some in self._current.values() for one in some if one.is_read), key=_line
        )
        if chained == WRAPS and not alone:
            return None
        if failure.says_little and earlier and earlier[-1].pattern.level == "said":
            return None
        joined = chained == HANDLES or failure.shown.kind is Kind.COMPILED
        while earlier and earlier[-1].gives_way(joined):
            given = earlier.pop()
            self._current[given.id].remove(given)
        return failure.rule, failure.pattern, _Values()

    def _found(self, number: int, text: str, rule: Rule, pattern: Pattern, values: _Values) -> None:
        prefix = _RAY_PREFIX.search(text)
        where, at = prefix.group(1) if prefix else self._host, time_of(self._before)
        cause, fix = pattern.cause, pattern.fix
        if pattern.text:
            values |= {"host": where or "a host", "time": at[6:] or "an unknown time"}
            cause = cause.format_map(values)
            harmless = {name: value for name, value in values.items() if _WORD.fullmatch(value)}
            fix = fix.format_map(_Values(harmless))
        if any(one.cause == cause for one in self._current.get(rule.id, ())):
            return
        if self._is_aftermath(rule, pattern):
            return
        if self._last and self._last.id in pattern.instead and self._counts(self._last):
            self._current[self._last.id].remove(self._last)
        if pattern.passing:
            self._waits = True
            self._silent.clear()  # lines that show progress are among them
        evidence = Evidence(self._file, number, text.strip(), where)
        before = () if pattern.text else tuple(self._lines_before(text, where))
        self._last = Finding(rule, pattern, cause, fix, evidence, before, at)
        self._reaches = self._number
        _keep(self._current, [self._last])

    def _is_aftermath(self, rule: Rule, pattern: Pattern) -> bool:
        """Whether it only tells the end of a process that somebody brought about."""
        if self._engine_stopped and rule.id == "rank-died":
            return True
        return self._stopped and pattern.level not in {"root", "raised"} and not pattern.passing

    def _lines_before(self, text: str, host: str) -> Iterator[Evidence]:
        lines = list(self._before)
        failed = time_of(lines)
        for at in warnings_before(text, lines):
            warned = time_of(lines[: at + 1])
            with suppress(ValueError):  # a line without a time, or with one that is none
                if when(failed) - when(warned) > _JUST_BEFORE:
                    continue
            number = self._number - len(lines) + 1 + at
            yield Evidence(self._file, number, plain(lines[at]).strip(), host)


def _there(joined: bytes) -> tuple[Sequence[tuple[str, Rule, Pattern]], bool]:
    """Return the patterns that lines of a block may match, and whether they may show unknown
    failures: searching a block for a text is ten times as fast as searching its lines."""
    # Colours, and the zeros of UTF-16, may stand inside of a word.
    joined = without_escapes(joined)
    # Any line stands for all that differ from it only in digits.
    small = without_digits(joined.decode("utf-8", "replace")).lower()
    there = {anchor for anchor in _anchors() if anchor in small}
    return [each for each in _patterns() if each[0] in there], TRIGGER.search(small) is not None


def _joined(last: Finding, text: str) -> Iterator[str]:
    """Yield the last finding's line with this one, in which a terminal or a writer of long values
    may have gone on with it; people who quote a log break its lines between words, too, which is
    looked for after what no rule knows."""
    unknown, more = not last.pattern.text, body_of(text)
    if text.startswith(_INDENTED) or (unknown and more):
        yield f"{last.evidence.text} {more}"
    if unknown and more:
        yield f"{last.evidence.text}{more}"


def _shapes(block: Sequence[bytes]) -> list[int]:
    """Return a number for each line, the same for lines that differ only in digits."""
    together = b"".join(block).translate(None, _DIGITS).split(b"\n")
    if len(together) == len(block) + 1 and not together[-1]:
        return list(map(hash, together[:-1]))  # much faster, where all lines are whole
    return [hash(raw.translate(None, _DIGITS)) for raw in block]


def _keep(kept: dict[str, list[Finding]], more: Iterable[Finding]) -> None:
    """Add findings by rule, MOST of each: if there are more, the latest of the least decisive are
    dropped, but not always the newest."""
    for one in more:
        found = kept.setdefault(one.id, [])
        found.append(one)
        if len(found) > MOST:
            del found[max(range(MOST), key=lambda at: (found[at].weight, at))]


def _timed(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings, in order, with the time of the next one for those before the log's first
    clock: they came first."""
    timed, time = [], ""
    for each in reversed(findings):
        time = each.time or time
        timed.append(each if each.time == time else replace(each, time=time))
    return timed[::-1]


def _line(finding: Finding) -> int:
    return finding.evidence.line


def search_now(lines: Sequence[bytes], file: str, host: str = "") -> list[Finding]:
    """Return the findings of the last start of vLLM. Client errors count for REQUESTS_COUNT, by the
    log's own clock, since the service keeps running."""
    found = search(lines, file, host, last_start=True)
    kept = [one for one in found if one.pattern.level != "request"]
    if len(kept) < len(found):
        first = first_within(lines, REQUESTS_COUNT)
        for one in search(lines[first:], file, host, last_start=True):
            if one.pattern.level == "request":
                line = one.evidence.line + first
                kept.append(replace(one, evidence=replace(one.evidence, line=line)))
    return kept


class _Values(dict[str, str]):
    """What a pattern found, and `unknown` for missing names."""

    def __missing__(self, key: str) -> str:
        return "unknown"


def _candidates(
    text: str, among: Iterable[tuple[str, Rule, Pattern]]
) -> list[tuple[Rule, Pattern]]:
    """Return the rules and patterns that may match lines like this one with other digits."""
    small = without_digits(text).lower()
    return [(rule, pattern) for anchor, rule, pattern in among if anchor in small]


def _match(
    text: str, candidates: Iterable[tuple[Rule, Pattern]], before: deque[bytes], release: str
) -> tuple[Rule, Pattern, _Values] | None:
    """Return the first rule and pattern that match the line, and the values of its slots."""
    context = None
    for rule, pattern in candidates:
        match = pattern.expression.search(text) if pattern.is_for(release) else None
        if match and (pattern.after or pattern.without):
            context = context or b"".join(before).decode("utf-8", "replace")
            if pattern.after and not any(each in context for each in pattern.after):
                continue
            if any(each in context for each in pattern.without):
                continue
        if match:
            return rule, pattern, _Values(match.groupdict())
    return None


@cache
def _anchors() -> frozenset[str]:
    """Return the anchors of all patterns, each once."""
    return frozenset(anchor for anchor, _, _ in _patterns())


@cache
def _patterns() -> tuple[tuple[str, Rule, Pattern], ...]:
    """Return all patterns in order, each with its anchor."""
    return tuple((each.anchor, rule, each) for rule in rules() for each in rule.seen)
