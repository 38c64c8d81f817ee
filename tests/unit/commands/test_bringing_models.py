"""What bringing a model decides before anything moves, and what it says meanwhile."""

from __future__ import annotations

import pytest

from clusterctl.commands.model_pull import hub_model, note_unhashed
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import Event, Note
from clusterctl.errors import UsageError
from clusterctl.facts.model import ImageFacts
from clusterctl.transfer.chain_link import LinkProgress
from clusterctl.transfer.relay.upstream import HUB
from clusterctl.transfer.weights.hub import HubFile, Listing
from clusterctl.transfer.weights.receiver import WeightsReceiver
from clusterctl.units import GIB
from tests.fakes.transport import FakeTransport

IMAGE = ImageFacts("sha256:1", (), (), (), 1, "amd64", {})
DRIVER = driver_for(FakeTransport())


def test_a_model_of_a_hub_gets_the_name_that_serve_looks_for() -> None:
    short = hub_model("qwen2.5-1.5b", "/data/models", "hf", None, None)
    assert (short.model_id, short.name) == ("Qwen/Qwen2.5-1.5B-Instruct", "Qwen2.5-1.5B-Instruct")
    other = hub_model("org/name", "/data/models", "modelscope", "v1", "mine")
    assert (other.hub, other.model_id, other.name, other.revision) == (
        "modelscope", "org/name", "mine", "v1",
    )  # fmt: skip
    with pytest.raises(UsageError, match="is not a model on a hub"):
        hub_model("/data/models/x", "/data/models", "hf", None, None)


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (
            LinkProgress("a", 3 * GIB, 4 * GIB, 0, 2**29, ("gpu1",)),
            "3.0 of 4.0 GiB, 512.0 MiB/s, 2 s left, from gpu1",
        ),
        (
            LinkProgress("a", 3 * GIB, 4 * GIB, 0, 2**29, ("source",)),
            "3.0 of 4.0 GiB, 512.0 MiB/s, 2 s left, from this machine",
        ),
        (LinkProgress("a", GIB, 4 * GIB, 0, 0, (HUB,)), "1.0 of 4.0 GiB, from the hub"),
        (LinkProgress("a", 0, 0, 0, 0.0, (), "gpu1: timed out"), "0.0 of 4.0 GiB, gpu1: timed out"),
        (LinkProgress("a", 9 * GIB, 9 * GIB, 0, 1.0, ()), "4.0 of 4.0 GiB"),
    ],
)
def test_one_line_says_how_far_a_host_is(progress: LinkProgress, text: str) -> None:
    assert WeightsReceiver.describe(progress, 4 * GIB) == text


def test_a_file_whose_hash_no_hub_publishes_is_named() -> None:
    files = (HubFile("a", 1, "u", "0" * 64), HubFile("b", 1, "u"), HubFile("c", 1, "u", "", "1"))
    told = list[Event]()
    note_unhashed(Listing("hf", "Org/Tiny", "c", files), told.append)
    assert told == [Note("b: the hub publishes no hash of it, so only its size is checked")]


def test_a_name_that_leads_out_of_the_models_directory_is_refused() -> None:
    for name in ("../elsewhere", "/etc", "a/../..", ".hidden"):
        with pytest.raises(UsageError, match="is not a valid name of a model directory"):
            hub_model("Qwen/Qwen2.5-1.5B-Instruct", "/data/models", "hf", None, name)
