"""What programs put before the message of a line: processes, times, levels and places of code."""

from __future__ import annotations

import re

# What programs put before a line: processes, times, levels, places of code, names of containers;
# before that, journald its host and process, and grep the number of the line
TAG = re.compile(r"\([^()]*\bpid=[^()]*\)|\[rank\d+\]")
PREFIX = re.compile(
    r"(?:\d+[:-](?=[(A-Z\[]|\d{4}-))?"
    r"(?:(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,]+[\d:+-]*) "
    r"[\w.-]+ [\w.@/-]+(?:\[\d+\])?: )?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL):[\w./-]+:)?"
    r"(?:\s*(?:\((?:[^()]*\bpid=[^()]*|[A-Z]\w+)\)|\[[^\]]*\]:?|"
    r"(?P<level>(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG)(?=:?\s)|"
    r"(?:critical|fatal|error|warning|info|debug)(?= *\|)):?|[\w.-]+ *\||\||"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]+\S*(?: (?:UTC|GMT|CES?T|E[DS]T|P[DS]T|[IJK]ST)(?=\s))?|"
    r"(?:\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d+)?(?=\s)|\w+\.py:\d+\]?|-(?=\s)|"
    r"\.\.\.(?= ?[\[(])|…(?= ?[\[(])) ?)*"
)
# How glog and Ray mark an error: E0417 19:46:42, [2026-11-22 03:12:07,1 E 7 7]
GRAVE_PREFIX = re.compile(
    r"(?:\([^()]*pid=\d+[^()]*\)\s*)*(?:[EF]\d{4} \d\d:|\[[^\]]*,\d+ [EF] \d+ \d+\])"
)
# How vLLM's processes and its logger begin a line
OF_VLLM = re.compile(
    r"\((?:EngineCore|APIServer|Worker|VllmWorker|RayWorker)(?:[^()]* ?pid=|\w*\))|"
    r"Worker failed with error '|"
    r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\]"
)
GRAVE = frozenset({"ERROR", "CRITICAL", "FATAL", "error", "critical", "fatal"})
TELLING = frozenset({*GRAVE, "WARNING", "WARN"})
HARMLESS = frozenset({"INFO", "DEBUG", "WARNING", "WARN", "info", "debug", "warning"})
# Such a level anywhere in a line, also as glog writes it
MILD = re.compile(
    r"\b(?:INFO|DEBUG|WARN|WARNING|[A-Z]?[a-z]*Warning)\b|Exception ignored in|"
    r"(?:^|[\s\[:])[IW]\d{3,4} \d\d:\d\d"
)


def body_of(text: str) -> str:
    """Return a line without what its program put before it."""
    return with_indentation(text).strip()


def with_indentation(text: str) -> str:
    """Return a line without what its program put before it, as it was indented."""
    prefix = PREFIX.match(text)
    return text[prefix.end() if prefix else 0 :]
