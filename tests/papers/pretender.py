"""Takes the place of `bighmm train`, `distill`, `mix` and `eval` where only what surrounds them is
tested.

What it does is in BEHAVIOUR, by the name of the run: "fail"; "SIGINT" or "SIGTERM": send that
signal to the program that started it, and wait to be stopped by it; or "meet": wait until another
run is there at the same time; or "wait": until it is stopped. Else it finishes at once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

STOPS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "eval":
        found = {"perplexity": 20.0, "arguments": arguments}
        print(json.dumps({**found, "largest_deviation_from_one": 1e-6}))
        return
    run = Path(arguments[arguments.index("--out") + 1])
    behaviour = json.loads(os.environ["BEHAVIOUR"]).get(run.name)
    print("pretending", *arguments, file=sys.stderr)
    if behaviour == "fail":
        print("bighmm: there is no luck today", file=sys.stderr)
        sys.exit(2)
    run.mkdir(parents=True, exist_ok=True)
    if behaviour in STOPS and "--resume" not in arguments:
        be_stopped(run, STOPS[behaviour])
    if behaviour == "wait" and "--resume" not in arguments:
        be_stopped(run, None)
    if command in ("distill", "mix"):
        (run / "manifest.json").touch()
        return
    if behaviour == "meet":
        meet(run)
    result = json.loads(Path(os.environ["RESULT"]).read_text())
    if "--seed" in arguments:
        result["recipe"]["training"]["seed"] = int(arguments[arguments.index("--seed") + 1])
    (run / "result.json").write_text(json.dumps(result))


def be_stopped(run: Path, number: int | None) -> None:
    """Interrupt the program that started this one, if so, and wait for it to end this one."""

    def stop(*_: object) -> None:
        (run / "saved").touch()
        sys.exit(130)

    signal.signal(signal.SIGTERM, stop)
    (run / "recipe.json").touch()
    if number is not None:
        os.kill(os.getppid(), number)
    while True:
        signal.pause()


def meet(run: Path) -> None:
    """Wait until two runs are here; in vain if the program that started this one has ended."""
    (run / "here").touch()
    parent = os.getppid()
    while len(list(run.parent.glob("*/here"))) < 2:
        assert os.getppid() == parent
        time.sleep(0.01)


main()
