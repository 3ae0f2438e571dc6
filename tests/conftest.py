"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that: tests of Ctrl-C would never see it.
signal.signal(signal.SIGINT, signal.default_int_handler)
