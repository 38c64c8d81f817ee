"""Python on hosts: which package, from where, and when it is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import Os
from clusterctl.packages.target import python_package, target_named
from clusterctl.steps.host_python import MARKER, HostPython, PackagesAbsent
from tests.unit.steps.stage import Cluster, cluster
from tests.unit.steps.stage_install import DEBS, bundle, python_is_ours, without_python


@pytest.fixture
def made() -> Cluster:
    found = cluster()
    without_python(found)
    return found


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ("debian12", "python3"), ("ubuntu24.04", "python3"), ("rocky9", "python3"),
        ("ubuntu20.04", "python3.9"), ("rhel8", "python39"), ("almalinux8", "python39"),
    ],
)  # fmt: skip
def test_a_release_whose_own_python_is_too_old_gets_its_newer_one(
    system: str, package: str
) -> None:
    assert python_package(target_named(system)) == package


def test_the_plan_says_what_was_there(made: Cluster) -> None:
    change = HostPython().check(made.head_view)
    assert change is not None
    assert change.summary == "install python3"
    assert change.before == "Python 3.11 without its standard library"


def test_what_came_with_it_is_noted(made: Cluster) -> None:
    step = HostPython()
    change = step.check(made.head_view)
    assert change is not None
    step.apply(made.head_view, change)
    assert made.head.files[MARKER][0] == b"python3\n"


def test_packages_brought_along_that_lack_it_are_named(made: Cluster) -> None:
    with pytest.raises(RequirementsNotMet, match="lacks python3") as raised:
        HostPython(bundle(*DEBS)).check(made.head_view)
    assert raised.value.hint == "clusterctl packages bundle --for debian12 -o DIRECTORY"


def test_a_host_that_has_one_needs_nothing_of_what_was_brought() -> None:
    assert HostPython(bundle(*DEBS)).check(cluster().head_view) is None


def test_a_package_that_brings_an_older_one_is_an_error(made: Cluster) -> None:
    os = Os("rocky", ("rhel",), "8.10", "", "Rocky Linux 8.10", "x86_64", "4.18")
    view = replace(made.head_view, facts=replace(made.head_view.facts, os=os))
    step = HostPython()
    change = step.check(view)
    assert change is not None
    made.head.python_too_old = True
    with pytest.raises(RequirementsNotMet, match="python39 is installed, but the host still has"):
        step.apply(view, change)


def test_it_stays_where_something_else_has_come_to_need_it() -> None:
    made = cluster()
    python_is_ours(made)
    made.head.need_python = {"ansible"}
    made.head.packages.add("ansible")
    assert PackagesAbsent("Python", MARKER, "/etc/clusterctl/demo").check(made.head_view) is None


def test_it_stays_while_another_cluster_uses_the_host() -> None:
    made = cluster()
    python_is_ours(made)
    made.head.files["/etc/clusterctl/other/node.json"] = (b"{}", 0o600)
    assert PackagesAbsent("Python", MARKER, "/etc/clusterctl/demo").check(made.head_view) is None
