"""How often `diagnose` names the true cause of real logs: python -m tests.bench.diagnosis

The logs are in diagnosis.yaml. Rules are mended with the seen part alone, so only that part's
failures can be listed: python -m tests.bench.diagnosis --failures

Those of diagnosis_2026.yaml were gathered and labelled before `diagnose` was tried on them. For
failures that no rule knows they have the line that matters, and naming it is right.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

from clusterctl.diagnosis.unknown import REQUEST, UNKNOWN
from clusterctl.diagnosis.verdict import diagnose

HEALTHY = "healthy"
FIRST = date(2026, 11, 22)
"""When the logs were gathered that have no date."""

SECOND = date(2026, 11, 26)
"""When those of 2026 were that have none."""


@dataclass(frozen=True)
class Log:
    """A log and what was wrong in the end."""

    cause: str
    sure: bool  # the thread established the cause
    source: str
    text: str
    gathered: date  # before the rules knew the log
    second: str = ""  # the cause according to another reading; empty if there was none

    @property
    def held_out(self) -> bool:
        """Whether the log is kept out of sight of those who write rules: a third of all sources."""
        return hashlib.sha256(self.source.encode()).digest()[0] % 3 == 0

    @property
    def sick(self) -> bool:
        return self.cause != HEALTHY

    @property
    def named(self) -> str:
        """The cause that `diagnose` names first, or `healthy`."""
        causes = diagnose(self.text.splitlines())
        return causes[0].id if causes else HEALTHY


@dataclass(frozen=True)
class LogOf2026:
    """A log, the rule that fits what was wrong, and the line that matters."""

    cause: str  # empty if no rule fits
    line: str  # what the line has; empty if the rule has to be named
    text: str
    gathered: date
    doubt: bool = False  # the line alone does not prove a cause
    batch: str = ""  # those that were gathered together; empty for the first ones
    at_first: str = ""  # certainty, and `right` or `wrong`, before the batch was used; or `silent`

    @property
    def right(self) -> bool:
        """Whether the cause is named, or else the line that matters."""
        causes = diagnose(self.text.splitlines())
        if self.cause == HEALTHY or not causes:
            return self.cause == HEALTHY and not causes
        if self.doubt and causes[0].certainty == "certain":
            return False
        named = bool(self.line) and self.line in causes[0].evidence[0].text
        return named or causes[0].id == self.cause


@dataclass(frozen=True)
class FirstRun:
    """What `diagnose` said of a batch before anything was mended with it."""

    failures: int
    right: int
    silent: int
    certain: int
    certain_right: int
    healthy: int
    called_sick: int


@dataclass(frozen=True)
class Figures:
    """What came out for some logs."""

    logs: int = 0
    right: int = 0
    wrong: int = 0
    unknown: int = 0  # the failure is named, and that its cause is not known
    silent: int = 0
    healthy: int = 0
    healthy_called_sick: int = 0

    @property
    def right_share(self) -> float:
        """The share of the logs of failures whose cause is named first, in percent."""
        return 100 * self.right / (self.logs - self.healthy)


def logs() -> list[Log]:
    """Return all logs in order."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(text, Loader=loader)  # noqa: S506 - both are safe
    return [
        Log(
            one["cause"],
            one["sure"],
            one["from"],
            one["log"],
            one.get("gathered", FIRST),
            one.get("second", ""),
        )
        for one in entries
    ]


def logs_of_2026() -> list[LogOf2026]:
    """Return the logs of diagnosis_2026.yaml in order."""
    text = Path(__file__).with_name("diagnosis_2026.yaml").read_text(encoding="utf-8")
    return [
        LogOf2026(
            one.get("cause", ""),
            one.get("line", ""),
            one["log"],
            one.get("gathered", SECOND),
            doubt=one.get("doubt", False),
            batch=one.get("batch", ""),
            at_first=one.get("at_first", ""),
        )
        for one in yaml.safe_load(text)
    ]


def agreement() -> tuple[int, int]:
    """Return of how many logs both readings have the same cause, and how many were read twice."""
    twice = [log for log in logs() if log.second]
    return sum(log.second == log.cause for log in twice), len(twice)


def first_runs() -> dict[str, FirstRun]:
    """Return by batch what was said at first, for those of which that is recorded."""
    everything = logs_of_2026()
    found = {}
    for batch in dict.fromkeys(log.batch for log in everything if log.batch):
        those = [log for log in everything if log.batch == batch]
        sick = [log.at_first for log in those if log.cause != HEALTHY]
        healthy = [log.at_first for log in those if log.cause == HEALTHY]
        found[batch] = FirstRun(
            len(sick),
            sum(said.endswith("right") for said in sick),
            sick.count("silent"),
            sum(said.startswith("certain") for said in sick),
            sick.count("certain right"),
            len(healthy),
            sum(said != "silent" for said in healthy),
        )
    return found


def calibration(pairs: Iterable[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    """Return by certainty how many causes were right and how many were named, of the texts of
    failures, each with whether `diagnose` is right."""
    found: dict[str, tuple[int, int]] = {}
    for text, right in pairs:
        causes = diagnose(text.splitlines())
        certainty = causes[0].certainty if causes else "silent"
        so_far = found.get(certainty, (0, 0))
        found[certainty] = (so_far[0] + right, so_far[1] + 1)
    return found


def held_out_failures() -> Iterator[tuple[str, bool]]:
    """Yield the failures that nobody who writes rules has seen."""
    return ((log.text, log.named == log.cause) for log in logs() if log.held_out and log.sick)


def failures_of_2026() -> Iterator[tuple[str, bool]]:
    """Yield those that were held out until rules were mended with them."""
    return ((log.text, log.right) for log in logs_of_2026() if log.cause != HEALTHY)


def measure(among: Iterable[Log]) -> Figures:
    """Return how many causes are named right."""
    pairs = [(log.cause, log.named) for log in among]
    sick = [(cause, named) for cause, named in pairs if cause != HEALTHY]
    healthy = [named for cause, named in pairs if cause == HEALTHY]
    right = sum(cause == named for cause, named in sick)
    unknown = sum(named in {UNKNOWN, REQUEST} for _, named in sick)
    silent = sum(named == HEALTHY for _, named in sick)
    return Figures(
        len(pairs),
        right,
        len(sick) - right - unknown - silent,
        unknown,
        silent,
        len(healthy),
        sum(named != HEALTHY for named in healthy),
    )


def table() -> Iterator[str]:
    """Yield the figures as lines of a table."""
    yield (
        f"{'part':34}{'logs':>5}{'right':>12}{'wrong':>7}{'unknown':>9}{'silent':>8}"
        f"{'healthy called sick':>21}"
    )
    everything = logs()
    dates = sorted({log.gathered for log in everything})
    for held_out, part in ((False, "seen"), (True, "held-out")):
        those = [log for log in everything if log.held_out is held_out]
        rows = [(part, those)]
        rows += [(f"{part}, {day}", [log for log in those if log.gathered == day]) for day in dates]
        for name, some in rows:
            yield row(name, measure(some))
            yield row(f"{name}, established", measure(log for log in some if log.sure))
    new = logs_of_2026()
    sick = [log for log in new if log.cause != HEALTHY]
    right, healthy = sum(log.right for log in sick), len(new) - len(sick)
    passed = sum(log.right for log in new if log.cause == HEALTHY)
    yield f"2026: {right} of {len(sick)} right, {healthy - passed} of {healthy} healthy called sick"
    yield "read twice: {} of {} alike".format(*agreement())
    for batch, run in first_runs().items():
        yield (
            f"2026, {batch} batch at first: {run.right} of {run.failures} right, {run.silent} "
            f"silent; {run.certain_right} of {run.certain} certain right; {run.called_sick} of "
            f"{run.healthy} healthy called sick"
        )
    for name, pairs in (("held-out", held_out_failures()), ("2026", failures_of_2026())):
        for certainty, (right, named) in sorted(calibration(pairs).items()):
            yield f"{name}, {certainty}: {right} of {named} right"


def row(name: str, got: Figures) -> str:
    right = f"{got.right} ({got.right_share:.0f} %)"
    sick = f"{got.healthy_called_sick} of {got.healthy}"
    return f"{name:34}{got.logs:5}{right:>12}{got.wrong:7}{got.unknown:9}{got.silent:8}{sick:>21}"


def failures() -> Iterator[str]:
    """Yield what is named wrongly in the seen part."""
    for log in logs():
        if not log.held_out and (named := log.named) != log.cause:
            yield f"{log.cause} called {named}: {log.source}"


if __name__ == "__main__":
    wanted = failures() if "--failures" in sys.argv else table()
    sys.stdout.writelines(f"{line}\n" for line in wanted)
