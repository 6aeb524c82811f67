"""Takes the place of `bighmm train`, `distill` and `eval` where only what surrounds them is tested.

What it does is in BEHAVIOUR, by the name of the run: "fail", "wait" to be stopped, or "meet": wait
until another run is there at the same time. Else it finishes at once.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    command, *arguments = sys.argv[1:]
    if command == "eval":
        print(json.dumps({"perplexity": 20.0, "arguments": arguments}))
        return
    run = Path(arguments[arguments.index("--out") + 1])
    behaviour = json.loads(os.environ["BEHAVIOUR"]).get(run.name)
    print("pretending", *arguments, file=sys.stderr)
    if behaviour == "fail":
        print("bighmm: there is no luck today", file=sys.stderr)
        sys.exit(2)
    run.mkdir(parents=True, exist_ok=True)
    if behaviour == "wait" and "--resume" not in arguments:
        wait_to_be_stopped(run)
    if command == "distill":
        (run / "manifest.json").touch()
        return
    if behaviour == "meet":
        (run / "here").touch()
        wait_until(lambda: len(list(run.parent.glob("*/here"))) == 2)
    result = json.loads(Path(os.environ["RESULT"]).read_text())
    if "--seed" in arguments:
        result["recipe"]["training"]["seed"] = int(arguments[arguments.index("--seed") + 1])
    (run / "result.json").write_text(json.dumps(result))


def wait_to_be_stopped(run: Path) -> None:
    def stop(*_: object) -> None:
        (run / "saved").touch()
        sys.exit(130)

    signal.signal(signal.SIGTERM, stop)
    (run / "recipe.json").touch()
    time.sleep(60)


def wait_until(true) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


main()
