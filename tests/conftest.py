"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import settings

# A busy machine is not a slow program: what bounds an example is the test's own time limit.
settings.register_profile("clusterctl", deadline=None)
settings.load_profile("clusterctl")

# A shell that starts tests in the background has them ignore Ctrl-C, and what they start as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
