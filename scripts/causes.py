"""Write docs/causes.md from the rules of `diagnose`: python -m scripts.causes > docs/causes.md"""

from __future__ import annotations

import re
import sys

from clusterctl.diagnosis.kinds import kinds
from clusterctl.diagnosis.rules import Pattern, Rule, rules
from tests.bench.diagnosis import (
    HEALTHY,
    agreement,
    calibration,
    failures_of_2026,
    first_runs,
    held_out_failures,
    logs,
    logs_of_2026,
    measure,
)

HEAD = """\
# Causes that diagnose knows

`clusterctl diagnose` searches logs for these, on a cluster or in files
([how](serving.md#why-a-service-failed)); `serve` names them when a service does not start. Each has
examples of lines. Words in <angle brackets> are filled in from the log. This page is made from
`clusterctl/diagnosis/rules.yaml` by `scripts/causes.py`.

How often the first cause that it names is the true one was measured with logs from public threads,
a third of which was held out when the rules were mended. On 2026-11-26 it was right for 110 of 124
failures (89 %) of that third, and named another cause for 5. On 2026-11-27 these were looked at for
what the reader lacks in general, so that today's figure is none of held-out logs any more: it is
right for {right} of {failures} ({share} %), names another cause for {wrong}, what failed and no
cause for {unknown}, nothing for {silent}, and calls {sick} of {healthy} healthy starts with
frightening lines a failure.
Of 149 failures that were gathered on 2026-11-23, it had been right for 109 (73 %) before a rule was
mended with any of them. What was the cause was decided before the rules were tried on a log, but
not independently of those who wrote the rules. On 2026-11-27, {twice} of the established ones were
read again without a look at the cause written down and at what `diagnose` says, by somebody who
knew the rules: {alike} were alike. Of four the thread could be read for it, the others were judged
by their lines. One log more, of UCX,
is left out: it was taken for healthy, and `diagnose` called it `nccl-memlock`, which another thread
shows as the cause of the same line. Threads quote the lines that seemed to matter, and were found
by searching for messages and symptoms, so whole logs and rare failures can do worse.

## Labels of somebody who had not seen the rules

On 2026-11-27, 60 logs of failures and 33 of healthy starts were labelled by somebody who had not
seen a rule, with the cause that an incident's notes, a later run or the logs beside it give. They
are logs and incident notes of 2025 and 2026 in public repositories (31 sources of failures, 18 of
healthy starts); 14 of the failures have less than six lines, 16 labels are only likely. `diagnose`
ran over them once before anybody who writes rules had read one. Whether it agrees with a label was
judged by somebody who knows the rules. Beside is the right line without the part that failed, a
neighbour of the cause, or a sentence of which a part is not true:

| failures | logs | cause | line and part | beside | wrong | silent | called certain, and agrees |
| --- | --- | --- | --- | --- | --- | --- | --- |
| all | 60 | 23 | 11 | 22 | 2 | 2 | 20 of 28 |
| neither short nor doubtful | 32 | 13 | 8 | 9 | 1 | 1 | 11 of 15 |

So the verdict agreed with the label for 34 of 60 (57 %), and the line that matters stood first for
50 (83 %). The figures below call the line alone right where no rule fits. What was called certain
agreed for 71 %, not for 97 %: two were wrong (a draft model that inherits a format of the KV cache
was called a GPU without fp8, a GPU that is named by its UUID an unknown architecture), and six true
in part, such as memory that was missing for the weights and not "beside the KV cache". Of the 33
healthy starts, 1 was called sick.

On the same day rules were mended with what these logs showed, by kind, so that they are held out
no longer: then 58 of 60 agreed (49 causes, 9 lines and parts), 1 was beside and 1 silent, 35 of 36
that were called certain agreed, and none of 33 healthy starts was called sick. The silent one has
no error: the kernel ended the process for lack of memory. The logs belong to others and are not in
the repository.

109 healthy starts have been tried before a rule was mended with them, of 22, 1, 19, 33, 7 and 27
logs: 0, 0, 2, 1, 0 and 2 were called sick, none is today. The 33 are of vLLM 0.12 to 0.26, one of
them of two hosts. They were cut where a service was stopped; read to their ends, 5 of 33 were
called sick: for two, an engine had died, which had been stopped, and one warns in words that were
taken for an error (mended); one has a request that is too long, and one has starts that failed
before the one that served.

Afterwards, on the same day, somebody else who had not seen a rule either labelled a second set: 66
failures of 50 documents, among them many of several hosts, of RDMA, KV connectors and changed
copies of vLLM, 36 of them with less than six lines, and 7 healthy starts. Nothing had been mended
with any of them. The verdict agreed for 29 (44 %), and the line that matters stood first in 35:

| failures | logs | cause | line and part | beside | wrong | silent | called certain, and agrees |
| --- | --- | --- | --- | --- | --- | --- | --- |
| all | 66 | 21 | 8 | 25 | 6 | 6 | 19 of 25 |
| at least six lines | 30 | 9 | 3 | 12 | 2 | 4 | 9 of 10 |
| neither short nor doubtful | 16 | 2 | 3 | 7 | 2 | 2 | 2 of 3 |

Three of the six wrong ones were called certain: a peer access that NCCL's shared memory lacks was
called vLLM's custom all-reduce, an extension that does not load a missing libnuma, and hosts with
less GPUs than a service wants on one of them a cluster with too few. None of the 7 healthy starts
was called sick.

Then rules were mended with the second set, too, mainly for what libraries below vLLM say (NCCL,
libfabric, UCX, LMCache, DeepGEMM, Ray) and for lines behind the prefixes of journald, Docker or
grep. It is held out no longer: 65 of the 66 agree (61 causes, 4 lines and parts), 33 of 34 that are
called certain do, and the one that is beside says that no memory is left for the KV cache, where an
upgrade of the driver had taken it, which the log does not show. Of the first set 58 of 60 agree as
before.

How that helps with other logs was tried with 34 quotes from other notes, labelled by the one who
mended, before `diagnose` saw them: it agreed with 20 (10 causes, 10 lines and parts), 10 were
beside, 1 was silent, 3 were wrong, none of them among the 9 that were called certain, which all
agree. The wrong ones were failures of CUDA that NCCL reports, told as ones of the network, or of
one platform; they were mended, too.

A third set was labelled and measured in the same way, by somebody who had seen no rule, after all
of that: 77 failures of 2026 (seven of one changed copy of vLLM; 27 with less than six lines) and 27
healthy starts, from sources that neither set before had used. Nothing had been mended with any of
them. The verdict agreed for 41 (53 %), and the line that matters stood first in 64:

| failures | logs | cause | line and part | beside | wrong | silent | called certain, and agrees |
| --- | --- | --- | --- | --- | --- | --- | --- |
| all | 77 | 26 | 15 | 30 | 3 | 3 | 24 of 29 |
| at least six lines | 50 | 19 | 9 | 18 | 3 | 1 | 18 of 22 |
| neither short nor doubtful | 26 | 12 | 5 | 6 | 2 | 1 | 12 of 13 |

One of the wrong ones was called certain: a setting had left no kernel for a layer, and the GPU was
blamed. The four others told who holds memory wrongly: another service that started, a process left
behind, buffers of vLLM's own and the limit of a pod did. Of the 27 healthy starts 2
were called sick. So expect a verdict that agrees for about half of the logs from elsewhere, and one
of six that are called certain to be not, or not wholly, true.

Then it was mended with the third set, mostly in what tells the part of a failure that no rule knows
(the package, the accelerator, the frames after a crash, a traceback that breaks off), so that it is
held out no longer: 72 of 77 agree (43 causes, 29 lines and parts), 5 are beside, none is wrong or
silent, 35 of 35 that are called certain agree, and none of the 27 is called sick. Those who mended
judged that. No log of the two sets before and none of the tables below is told worse.

What had been missed at first in these three sets, 99 of 203 logs, was looked at for what a reader
without any rule could have known. The fourth set came after it had been taught that:

| missed because | three sets | fourth set |
| --- | --- | --- |
| the exception's words say what kind of failure it is, and were not read | 21 | 0 |
| the part that failed was not named, or another one | 14 | 4 |
| another line stood first: a consequence, or a library's code for what it said | 23 | 5 |
| a sentence claimed too much: a rule too broad, or another cause of the line | 20 | 4 |
| the form of the lines was not read: prefixes, broken lines, an end without a message | 19 | 2 |
| the log does not show it | 2 | 0 |

So the kinds of failures were [written down](#what-no-rule-knows), and 88 wordings of rules that say
no more than a kind are gone. The fourth set was gathered after this had been published and before
it ran on any of it: 62 failures, mostly of 2026, of which 52 have less than six lines, and 23
healthy logs, from sources that no set before had used. It is weaker than the others in two ways: it
was not labelled blind, but with knowledge of the reader, from the documents beside the logs, and
many were found by searching for the words of errors. The verdict agreed for 47 (76 %), and the line
that matters stood first in 55:

| failures | logs | cause | line and part | beside | wrong | silent | called certain, and agrees |
| --- | --- | --- | --- | --- | --- | --- | --- |
| all | 62 | 40 | 7 | 13 | 2 | 0 | 17 of 19 |
| at least six lines | 10 | 6 | 0 | 3 | 1 | 0 | 4 of 6 |
| established | 49 | 34 | 4 | 9 | 2 | 0 | 13 of 14 |

None of the 23 was called sick. One that was called certain was wrong: a format of the KV cache was
blamed, where the block size was what every attention backend refused; another told a client's
mistake and not the client's other one. Of what was called probable 25 of 32 agreed, of the rest 5
of 11. The reader from before the kinds agrees with about 45 of these 62, 22 of 24 that it calls
certain, judged in the same way: most of the difference between the sets is one of how hard they
are, and little of it is due to the kinds. Without a single rule, the line that matters stands first
in 150 of the 203 logs of the first three sets, 143 before.

Then it was mended with the fourth set, so that it is held out no longer: 55 of 62 agree, 7 are
beside, none is wrong, 19 of 20 that are called certain agree, none of the 23 is called sick. No log
of the sets before is told wrong for it; twelve causes that had been certain are probable, and five
are told more coarsely. Of 17 quotes more that were found afterwards by the form of log lines and
not by an error's words, labelled in the same way, 8 agreed, 6 were beside, 1 was wrong (not
certain) and 2 silent. Mended with these, it agreed with 17 of 23 more, found in the same way and
several of them whole tracebacks: 4 were beside, 1 wrong (not certain), 1 silent; the line that
matters stood first in 21. Mended again, with 11 of 16 more: 3 were beside, 2 wrong (not certain),
the line stood first in 14. Of all 56, the 7 that are called certain agreed.

After that a fifth set was gathered, labelled and frozen, again by somebody who had not seen a rule:
45 failures, mostly of 2026 and of vLLM 0.18 and later, 21 with less than six lines, and 8
healthy logs, from sources that no set before had used. They come from public repositories: logs,
notes, and copies of issues; tracebacks were shortened by whole frames here and there. The one who
labelled judged, too, after the one run:

| failures | logs | cause | line and part | beside | wrong | silent | called certain, and agrees |
| --- | --- | --- | --- | --- | --- | --- | --- |
| all | 45 | 23 | 7 | 10 | 5 | 0 | 10 of 11 |
| at least six lines | 24 | 11 | 4 | 5 | 4 | 0 | 5 of 6 |
| established | 34 | 18 | 6 | 6 | 4 | 0 | 9 of 10 |

So the verdict agreed for 30 (67 %), and the line that matters stood first in 39. Of what was called
probable 15 of 22 agreed, of the rest 5 of 12; none of the 8 was called sick. The wrong one that was
certain took a name that the Hub does not know for files that a host lacks. The four others, all
probable: a directory `sm100` in a path for a GPU without a kernel, an operator that a build lacks
for one of another PyTorch, a UCX that cannot use GPU memory for a lost network, and a client's
mistake for the failure of a worker after it.

Then it was mended with the fifth set, by kind: what stands in a path is no architecture, messages
of several lines are read to their end, vLLM's exceptions for clients are told as such, operators
that are not there have a kind of their own. It is held out no longer: 42 of 45 agree (35 causes, 7
lines and parts), 3 are beside, none is wrong, 11 of 11 that are called certain agree. In the sets
and quotes before, no verdict became worse; ten are told with another part, with a kind of their
own, or with more of their message. Of 10 quotes more, most of them of Ascend's NPUs and labelled by
the one who had mended, it agreed with 7, among them the 2 that are called certain; 2 were beside, 1
silent. So expect about two thirds of what nobody has seen. The 97 % of what is called certain is
not reached on new logs: over the five sets 90 of 112 agreed at first, of the last two 27 of 30.

After the first set, 30 quotes from other incident notes of public repositories, of 1 to 20 lines,
were labelled by somebody who knows the rules before `diagnose` saw them: it agreed with 13 (6
causes, 7 lines and parts), 14 were beside, mostly because a quote without a traceback shows no
part, 2 of 4 that were called certain were wrong, 1 was silent; the line that matters stood first in
29. Mended with them, mainly by reading lines that were broken, it agrees with 24. Of 23 more,
labelled in the same way afterwards and many of them textbook messages, it agreed with 16 (10
causes), 7 were beside, and 7 of 7 that were called certain agreed.

Besides, `diagnose` of before that day was run over 213 logs without labels in which vLLM begins to
serve, of 30 public repositories (most of two of them). It named a failure in 61. Looked at one by
one, 35 have one (an engine that died, a client's mistake, an earlier start) and 26 of the other 178
were called sick: 23 because what was ended said so of itself, 3 because a compiled model was made
again. None of the 178 is called sick today, and none of 5 that were tried afterwards.

## Logs of public threads

Of 2026's releases, more were gathered and labelled before it was tried on any of them. Right is the
cause that the thread found, or where no rule fits the line that matters, and nothing for a healthy
start:

| gathered | failures | right at first | called certain, and right | healthy called sick |
| --- | --- | --- | --- | --- |
| 2026-11-26 | 50 | 41; 7 silent, 2 another line | 17 of 17 | 0 of 22 |
| 2026-11-27 | 57 | 50; 3 silent, 2 too sure, 2 another line | 12 of 14 | - |
| 2026-11-27, after mending | 14 | 13; 1 another line | 3 of 3 | 0 of 1 |
{first_runs}
The fourth batch was taken from what the searches for the third had shown besides, by somebody who
knew the reader, and is mostly single lines, so that it says less than the third.
Today it is right for {new_right} of these {new} failures, which is no held-out figure any more,
and calls {new_sick} of {new_healthy} healthy starts sick. Of {new_line} of the failures no rule
knows the cause, and naming the line is all that is asked. Where vLLM 0.33.0 raises an exception, in
8,035 places, it is named in 8,033; none of the 3,092 lines that it logs below errors
makes a start sick that serves (`python -m scripts.new_failures` tells it of any release).

How sure a cause is, today. That a failure between ranks is only likely was decided when 2 of 10
such verdicts were seen to be wrong:

| said | right, of that third | right, of 2026's failures |
| --- | --- | --- |
{calibration}
Most wordings come from the sources of vLLM (up to 0.33.0), others from what Ray, PyTorch, NCCL,
Docker and the hub are known to say, those of 2026 from the threads that their rules name. What was
wrong was decided when fewer causes were known: a newer, finer one counts as another cause.
`python -m tests.bench.diagnosis` prints the figures.

## What no rule knows

Of such a failure the first exception by time is read, without what Ray and other processes wrap it
in: the part that raised it, what was running, the settings that the line names, and by its words
its kind, which is never more than likely. The first that fits counts:

{kinds}
Where no kind fits, the id is `unknown-cause`. Two more ids are of failures that no rule needs to
know: `setting-refused` (vLLM says which setting it refuses), and `request-failed` (one request met
an exception in the API server).
"""


def kinds_table() -> str:
    """Return the kinds of failures as a table."""
    rows = [f"| `{kind.id}` | {kind.cause} | {kind.fix} |\n" for kind in kinds()]
    return "".join(("| id | what it probably is | what to do |\n| --- | --- | --- |\n", *rows))


def section(rule: Rule) -> str:
    """Return a cause as a section: what it is, what to do, a line for each wording."""
    patterns: dict[tuple[str, str], list[Pattern]] = {}
    for pattern in rule.seen:
        patterns.setdefault((pattern.cause, pattern.fix), []).append(pattern)
    text = f"\n## {rule.id}\n"
    for (cause, fix), wordings in patterns.items():
        text += f"\n{words(cause)}. **Fix:** {words(fix)}.\n\n```\n"
        text += "".join(f"{pattern.example[:160]}\n" for pattern in wordings[:3]) + "```\n"
    return text


def words(text: str) -> str:
    """Return a sentence with names in place of slots, and a capital letter unless a flag, a command
    or a name that has its own (vLLM) begins."""
    filled = re.sub(r"\{(\w+)\}", r"<\1>", text)
    first, *_ = filled.split(" ", 1)
    if filled.startswith(("-", "clusterctl ", "git ", "ibv")) or first != first.lower():
        return filled
    return filled[0].upper() + filled[1:]


def _calibration() -> str:
    names = {"certain": "nothing before the cause", "likely": "`probably:`"}
    names |= {"unknown": "`cause not known:`", "silent": "`no failure found`"}
    both = [calibration(pairs) for pairs in (held_out_failures(), failures_of_2026())]
    rows = []
    for name, text in names.items():
        figures = (found.get(name, (0, 0)) for found in both)
        rows.append(" | ".join([f"| {text}", *(f"{right} of {named}" for right, named in figures)]))
    return "".join(f"{row} |\n" for row in rows)


def _first_runs() -> str:
    rows = (
        f"| 2026-11-27, {name} batch | {run.failures} | {run.right}; {run.silent} silent, "
        f"{run.failures - run.right - run.silent} another line | {run.certain_right} of "
        f"{run.certain} | {run.called_sick} of {run.healthy} |\n"
        for name, run in first_runs().items()
    )
    return "".join(rows)


def page() -> str:
    """Return the whole page."""
    got = measure(log for log in logs() if log.held_out)
    alike, twice = agreement()
    new = logs_of_2026()
    sick = [log for log in new if log.cause != HEALTHY]
    head = HEAD.format(
        right=got.right,
        failures=got.logs - got.healthy,
        share=round(got.right_share),
        wrong=got.wrong,
        unknown=got.unknown,
        silent=got.silent,
        sick=got.healthy_called_sick or "none",
        healthy=got.healthy,
        new=len(sick),
        new_healthy=len(new) - len(sick),
        new_sick=sum(not log.right for log in new if log.cause == HEALTHY) or "none",
        new_right=sum(log.right for log in sick),
        new_line=sum(not log.cause for log in sick),
        calibration=_calibration(),
        kinds=kinds_table(),
        first_runs=_first_runs(),
        alike=alike,
        twice=twice,
    )
    return head + "".join(map(section, rules()))


if __name__ == "__main__":
    sys.stdout.write(page())
