"""Which drivers run which images. Conditions as NVIDIA's CUDA images carry them."""

from __future__ import annotations

import pytest

from clusterctl.facts.cuda import needed_driver, too_old

REQUIRE = (
    "cuda>=12.8 brand=unknown,driver>=470,driver<471 brand=grid,driver>=470,driver<471 "
    "brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=550,driver<551"
)


@pytest.mark.parametrize(
    ("driver", "needs"),
    [
        ("570.133.20", None),
        ("580.159.04", None),
        ("999.1", None),
        ("550.54.15", None),
        ("535.161.08", None),
        ("470.256.02", None),
        ("545.23.08", "CUDA 12.8"),
        ("", None),
    ],
)
def test_what_cuda_images_require(driver: str, needs: str | None) -> None:
    assert too_old(driver, {"NVIDIA_REQUIRE_CUDA": REQUIRE}) == needs


@pytest.mark.parametrize(
    ("driver", "version", "needs"),
    [
        ("535.161.08", "12.9.1", None),
        ("470.256.02", "12.1.0", "CUDA 12.1.0"),
        ("570.133.20", "13.0.2", "CUDA 13.0.2"),
        ("580.65.06", "13.0.2", None),
        ("570.133.20", "99.0", None),
    ],
)
def test_an_image_that_only_names_its_cuda(driver: str, version: str, needs: str | None) -> None:
    assert too_old(driver, {"CUDA_VERSION": version}) == needs


def test_an_image_that_says_nothing_runs_anywhere() -> None:
    assert too_old("390.48", {}) is None
    assert needed_driver({}) is None


def test_the_driver_to_install_is_named() -> None:
    assert needed_driver({"NVIDIA_REQUIRE_CUDA": REQUIRE}) == "570"
    assert needed_driver({"CUDA_VERSION": "13.0.2"}) == "580.65.06"
