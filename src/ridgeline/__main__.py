"""`python -m ridgeline`: the same as the `ridgeline` command, for a checkout that is not installed."""

from __future__ import annotations

import sys

from ridgeline.cli import main

sys.exit(main())
