"""The rules of the firewall, and what happens when they keep the operator out."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.step import Change
from clusterctl.errors import CommandFailed, RequirementsNotMet, StepFailed
from clusterctl.steps import firewall
from clusterctl.steps.firewall import CONFIRM, TRY, Admission, Firewall, Places, ruleset
from tests.unit.steps.stage import ADMITTED, cluster
from tests.unit.steps.stage import _systemd as with_systemd

PLACES = Places("demo")


def test_rules_that_keep_the_operator_out_are_taken_back() -> None:
    made = cluster()
    with_systemd(made)
    host, view = made.head, made.head_view
    first = Firewall("demo", ADMITTED, pause=lambda _: None)
    first.apply(view, Change("close"))
    confirmed = host.tables.loaded[PLACES.table]

    host.tables.shut = True
    second = Firewall("demo", replace(ADMITTED, addresses=()), pause=lambda _: None)
    with pytest.raises(StepFailed, match="no new SSH connection succeeded"):
        second.apply(view, Change("close"))

    assert host.tables.loaded[PLACES.table] == confirmed
    assert not host.tables.timers
    host.tables.shut = False
    assert first.check(view) is None


def test_a_run_that_ends_before_it_confirms_leaves_a_timer_that_restores() -> None:
    made = cluster()
    with_systemd(made)
    host = made.head
    host.tables.shut = True
    host.tables.loaded["other"] = "of the user"

    def killed(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Firewall("demo", ADMITTED, pause=killed).apply(made.head_view, Change("close"))

    host.tables.fire(PLACES.timer, host.files)
    assert host.tables.loaded == {"other": "of the user"}


def test_rules_that_were_taken_back_are_not_confirmed_by_a_connection_that_comes_late() -> None:
    """They may keep the operator out, and the host would load them at its next boot."""
    made = cluster()
    with_systemd(made)
    host, view = made.head, made.head_view
    first = Firewall("demo", ADMITTED)
    first.apply(view, Change("close"))
    host.tables.shut = True

    def while_the_timer_fires(_: float) -> None:
        host.tables.fire(PLACES.timer, host.files)
        host.tables.shut = False

    second = Firewall("demo", replace(ADMITTED, addresses=()), pause=while_the_timer_fires)
    with pytest.raises(CommandFailed, match="rolled them back"):
        second.apply(view, Change("close"))
    assert first.check(view) is None


def test_rules_that_the_host_garbled_are_no_traceback() -> None:
    made = cluster()
    with_systemd(made)
    Firewall("demo", ADMITTED).apply(made.head_view, Change("close"))
    data, mode = made.head.files[PLACES.rules]
    made.head.files[PLACES.rules] = data.replace(b"10.0.0.2/32", b"} evil"), mode
    some = Firewall("demo", replace(ADMITTED, complete=False))
    assert some.check(made.head_view)


@pytest.mark.parametrize("text", ["", "file none", "file a\nfile b\nssh x"])
def test_a_host_that_answers_with_something_else_is_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firewall, "root_script", lambda *_, **__: text)
    with pytest.raises(StepFailed, match="cannot be read"):
        Firewall("demo", ADMITTED).check(cluster().head_view)


def test_a_host_that_does_not_answer_keeps_what_it_was_admitted_with() -> None:
    made = cluster()
    with_systemd(made)
    Firewall("demo", ADMITTED).apply(made.head_view, Change("close"))

    some = Admission(("10.0.0.1", "10.0.0.3"), ADMITTED.ports, complete=False)
    Firewall("demo", some).apply(made.head_view, Change("close"))

    loaded = made.head.tables.loaded[PLACES.table]
    assert "{ 10.0.0.1/32, 10.0.0.2/32, 10.0.0.3/32 }" in loaded
    assert Firewall("demo", some).check(made.head_view) is None


def test_without_systemd_it_is_a_requirement() -> None:
    made = cluster()
    made.head.systemd = False
    with pytest.raises(RequirementsNotMet, match="needs systemd"):
        Firewall("demo", ADMITTED).check(made.head_view)


def test_the_port_that_sshd_listens_on_is_admitted_first() -> None:
    rules = ruleset("t", ADMITTED, ("22", "40022"), "32768-60999")
    assert rules.index("tcp dport { 22, 40022 } accept") < rules.index("@ports reject")


needs_nft = pytest.mark.skipif(
    shutil.which("nft") is None or subprocess.run(["unshare", "-n", "true"]).returncode != 0,
    reason="needs nft and root: apt-get install nftables",
)

# Keeps what the timer would do in a file.
SYSTEMD_RUN = """\
#!/bin/sh
while [ "$1" != /bin/sh ]; do shift; done
printf '%s\\0' "$@" >"${0%/*}/timer"
"""


@needs_nft
def test_what_a_shell_makes_of_a_late_confirmation(tmp_path: Path) -> None:
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", "#!/bin/sh\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    old, new = (
        ruleset("t", Admission((address,), ("6379",)), ("22",), "1-2")
        for address in ("10.0.0.1", "10.0.0.9")
    )
    (tmp_path / "old").write_text(old)
    (tmp_path / "other").write_text(new)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in (old, new)]
    script = f"""\
mount -t tmpfs none /etc/systemd
cd {tmp_path}
try() {{ cp "$1" new; sh -c "$TRY" try t rules new 60 undo; }}
confirm() {{ sh -c "$CONFIRM" confirm t rules new listing x.service undo "$1"; }}
fire() {{ xargs -0 -a timer env; }}
try old; confirm {digests[0]}
fire; confirm {digests[0]}
try other; fire
if confirm {digests[1]}; then exit 9; fi
cmp rules old
nft list table inet t | cmp - listing
try other; confirm {digests[1]}
cmp rules other
"""
    ran = subprocess.run(
        ["unshare", "-nm", "sh", "-ec", script],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "TRY": TRY, "CONFIRM": CONFIRM},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "rolled them back" in ran.stderr


@needs_nft
def test_nft_takes_the_rules_again_and_again() -> None:
    addresses = ("10.0.0.1", "10.0.0.0/24", "fd00::1", "192.168.0.0/16")
    rules = ruleset("clusterctl_a_b", Admission(addresses, ("6379", "6380-6390")), ("22",), "1-2")
    script = "nft -f - <<E\n" + rules + "E\n" + "nft -f - <<E\n" + rules + "E\nnft list ruleset"
    listed = subprocess.run(
        ["unshare", "-n", "sh", "-ec", script], capture_output=True, text=True, check=True
    ).stdout
    assert listed.count("table inet") == 1
    assert "10.0.0.0/24, 192.168.0.0/16" in listed
    assert "fd00::1" in listed
