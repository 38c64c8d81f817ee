"""Who clusterctl says it is run by."""

from __future__ import annotations

import os

import pytest

from clusterctl.transport.local import account

NOBODY_HAS = 3_999_999_999


def test_a_user_without_a_passwd_entry_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: NOBODY_HAS)
    assert account() == f"uid {NOBODY_HAS}"


def test_the_environment_names_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert account() == "ann"
