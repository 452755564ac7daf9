"""For all tests: children must feel Ctrl-C even where the tests themselves run in the background, as `make test &` in a script does."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited by every child otherwise
    signal.signal(signal.SIGINT, signal.default_int_handler)
