"""For all tests."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background makes them, and all their children, ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
