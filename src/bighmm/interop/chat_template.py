"""Chat templates of language models, rendered in a child process with limits.

A template is a program in the files of a model: it may run for ever, or write a text that fills the
memory. transformers keeps it from other files and from Python; the limits here end it.

This file is also the child's program, which needs no other module of this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 10  # of computing, and one more for every PROMPTS_PER_SECOND prompts
PROMPTS_PER_SECOND = 200
START_SECONDS = 120  # by the clock, for the child's start; a stopped machine must not wait for ever
MEMORY = 2**30  # bytes that a template may use
LONGEST = 1_000_000  # characters of a text


def user_turns(template: str, texts: Sequence[str], marks: dict[str, Any]) -> list[str]:
    """Each text as a user's turn of a chat, followed by the beginning of the model's answer.

    marks: the special tokens by name, which templates refer to.

    Raises ValueError with the reason if the template fails or goes beyond the limits.
    """
    seconds = SECONDS + len(texts) // PROMPTS_PER_SECOND
    request = json.dumps(
        {"template": template, "texts": list(texts), "marks": marks, "seconds": seconds},
        default=str,
    )
    too_long = ValueError(f"it computes for more than {seconds} seconds")
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__).resolve())],
            input=request.encode(),
            capture_output=True,
            timeout=START_SECONDS + seconds,
        )
    except subprocess.TimeoutExpired:
        raise too_long from None
    if done.returncode < 0:  # the system has ended the child
        raise too_long
    if done.returncode > 0:
        reason = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise ValueError(f"it could not be rendered ({reason})")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["texts"]


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the child replies: texts, or an error."""
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(request["seconds"])
    try:
        rendered: Any = render_jinja_template(
            conversations=[[{"role": "user", "content": text}] for text in request["texts"]],
            chat_template=request["template"],
            add_generation_prompt=True,
            **request["marks"],
        )
        texts: list[str] = rendered[0]
    except MemoryError:
        return {"error": f"it needs more than {MEMORY >> 20} MiB"}
    except Exception as error:  # a template can raise anything
        reason = str(error).strip().split("\n")[0][:200]
        return {"error": reason or type(error).__name__}
    if max(map(len, texts)) > LONGEST:
        return {"error": f"it writes more than {LONGEST:,} characters"}
    return {"texts": texts}


def _limit(seconds: int) -> None:
    """Limit the time and the memory that this process may use from now on, where that is known."""
    try:
        import resource
    except ImportError:  # this system has no such limits; the parent's clock remains
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (total, total))
    pages = Path("/proc/self/statm")
    if pages.is_file():
        size = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


if __name__ == "__main__":
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
