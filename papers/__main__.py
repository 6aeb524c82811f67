"""`python -m papers …` in a checkout is the same as `bighmm reproduce …`."""

from __future__ import annotations

import sys

from bighmm.cli.main import call

call("papers.command", "reproduce_command", sys.argv[1:])
