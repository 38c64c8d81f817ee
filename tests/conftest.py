"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is not a slow program: what bounds an example is the test's own time limit.
settings.register_profile("clusterctl", deadline=None)
settings.load_profile("clusterctl")
