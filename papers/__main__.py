"""`python -m papers …` in a checkout is the same as `bighmm reproduce …`."""

from __future__ import annotations

import sys

from bighmm.cli.main import call
from papers.command import reproduce_command

call(lambda: reproduce_command(sys.argv[1:]))
