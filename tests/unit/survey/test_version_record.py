"""The version record: what hosts and services have, what differs, and what changed when."""

from __future__ import annotations

import json
from dataclasses import replace

from clusterctl.facts.model import HostFacts
from clusterctl.reporting.version_view import version_lines
from clusterctl.serving.vulnerabilities import vulnerability_notes
from clusterctl.survey.versions import (
    engine_versions,
    ledger_entries,
    ledger_file,
    version_record,
)
from tests.fakes.surveys import Said, survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, facts, healthy

__all__ = ["facts"]


def line(time: float, subject: str, **versions: str) -> bytes:
    entry = {"time": time, "host": "any", "subject": subject, "versions": versions}
    return json.dumps(entry).encode() + b"\n"


def reports(facts: HostFacts) -> dict[str, Said]:
    found = healthy(facts)
    ledgers = {
        "gpu1": line(1e9, "tiny", model="/m", flags="--a 1")
        + line(2e9, "tiny", model="/m", flags="--a 2"),
        "gpu2": line(1e9, "node", vllm="0.31.0", nccl="2.27.3")
        + b"cut sho\n"
        + line(1.5e9, "node", vllm="0.32.0"),
    }
    for name, vllm in (("gpu1", "0.32.0"), ("gpu2", "0.33.0")):
        state = found[name].state
        assert state is not None
        state = replace(state, versions={"vllm": vllm, "nccl": "2.27.3"})
        files = {ledger_file("demo"): ledgers[name]}
        found[name] = replace(found[name], state=state, files=files)
    return found


def test_changes_are_told_newest_first_and_services_as_they_are_now(facts: HostFacts) -> None:
    record = version_record(survey_of(INVENTORY, reports(facts)))

    assert record.services == {"tiny": {"model": "/m", "flags": "--a 2"}}
    assert [(one.host, one.subject, one.name, one.before, one.after) for one in record.changes] == [
        ("gpu1", "tiny", "flags", "--a 1", "--a 2"),
        ("gpu2", "node", "nccl", "2.27.3", ""),
        ("gpu2", "node", "vllm", "0.31.0", "0.32.0"),
    ]


def test_the_view_names_hosts_only_where_they_differ(facts: HostFacts) -> None:
    said = reports(facts)
    lines = version_lines(version_record(survey_of(INVENTORY, said)).to_json())
    words = [" ".join(line.split()) for line in lines]

    assert "vllm 0.32.0 on gpu1" in words
    assert "vllm 0.33.0 on gpu2" in words
    assert "nccl 2.27.3" in words
    assert any(line.endswith("gpu2 nccl 2.27.3 → none") for line in words)
    assert any(line.endswith("gpu1 tiny flags --a 1 → --a 2") for line in words)

    said["gpu2"] = Said(problem="timed out")
    assert "gpu2: timed out" in version_lines(version_record(survey_of(INVENTORY, said)).to_json())


def test_of_a_services_flags_only_those_that_changed_are_shown(facts: HostFacts) -> None:
    said = reports(facts)
    same = "--host 10.0.0.1 --served-model-name a-b --enable-prefix-caching"
    ledger = line(1e9, "tiny", model="/m", flags=f"{same} --max-model-len 512 -O3")
    ledger += line(2e9, "tiny", model="/m", flags=f"{same} --max-model-len 1024")
    said["gpu1"] = replace(said["gpu1"], files={ledger_file("demo"): ledger})
    lines = version_lines(version_record(survey_of(INVENTORY, said)).to_json())
    assert any(
        line.endswith("gpu1  tiny flags  --max-model-len 512 -O3 → --max-model-len 1024")
        for line in lines
    )


def test_a_ledger_may_hold_anything() -> None:
    data = b'[]\n{"time": "x", "subject": 1, "versions": {}}\n\xff\n' + line(1, "a", b="c" * 9999)
    data += b'{"time": 1e999, "subject": "a", "versions": {}}\n'
    data += b'{"time": 1%s, "subject": "a", "versions": {}}\n' % (b"0" * 400)
    ((_, subject, versions),) = ledger_entries(data)
    assert (subject, len(versions["b"])) == ("a", 2000)
    assert ledger_entries(None) == []


def test_a_replica_that_moved_is_as_its_present_host_has_it(facts: HostFacts) -> None:
    said = reports(facts)
    ledger = said["gpu2"].files[ledger_file("demo")] + line(1e9, "tiny", model="/old")
    said["gpu2"] = replace(said["gpu2"], files={ledger_file("demo"): ledger})
    record = version_record(survey_of(INVENTORY, said))
    assert record.services == {"tiny": {"model": "/m", "flags": "--a 2"}}


def test_what_a_ledger_says_stays_on_its_line(facts: HostFacts) -> None:
    said = reports(facts)
    ledger = line(1e18, "no\nde", a="1") + line(1e18, "no\nde", a="2")
    said["gpu2"] = replace(said["gpu2"], files={ledger_file("demo"): ledger})
    lines = version_lines(version_record(survey_of(INVENTORY, said)).to_json())
    assert any(line.startswith("  ?  gpu2  no\\nde a  1") for line in lines)


def test_the_heads_vllm_is_named_with_its_vulnerabilities(facts: HostFacts) -> None:
    said = reports(facts)
    state = said["gpu1"].state
    assert state is not None
    said["gpu1"] = replace(said["gpu1"], state=replace(state, versions={"vllm": "0.31.0"}))
    survey = survey_of(INVENTORY, said)

    found = vulnerability_notes(engine_versions(survey))
    record = replace(version_record(survey), vulnerabilities=found)

    (line,) = (one for one in version_lines(record.to_json()) if one.startswith("vulnerable: "))
    assert "vLLM 0.31.0 has CVE-2026-115911" in line
    assert line.endswith("fixed in 0.32.0")
