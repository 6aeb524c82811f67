"""A page that needs no server: the answers that it shows, as scripts beside it.

    index.html, page/…     the page
    data/index.js          facts, blocks, moves, names, curves, and a column for each sort of states
    data/blocks.js         the pages of all blocks
    data/states-N.js       the pages of states 256·N … 256·N + 255, with their contexts
    data/sentences.js      the answers about the chosen sentences

A browser that opens a file does not let it read others, but it runs scripts. So the data are
scripts that hand their value to the page: `bighmmStatic` is a variable, `bighmmChunk` a function.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bighmm import answers
from bighmm.answers import browsing
from bighmm.answers.plain import finite
from bighmm.base.files import replace_folder
from bighmm.base.interrupting import watched
from bighmm.explore.names import Names
from bighmm.explore.opened import Opened
from bighmm.explore.settings import VERSION, Limits
from bighmm.explore.static_page import write_page
from bighmm.lm.gapped_text import MARK
from bighmm.lm.protocol import LM
from bighmm.train.curves import has_log, read_curves

CHUNK = 256  # states of one file
MOST_SENTENCES = 200
GAP_WORDS, FILLINGS = 10, 5  # likeliest words and fillings of a gap, as many as the page asks for
Progress = Callable[[str, int, int], None]  # stage, done, of how many


def export_site(
    opened: Opened,
    folder: Path,
    sentences: Sequence[str] = (),
    progress: Progress = lambda stage, done, total: None,
) -> None:
    """Write the page and its data into a folder, which is new or an earlier export.

    Raises ValueError if the folder holds other files, or there are too many sentences.
    """
    if len(sentences) > MOST_SENTENCES:
        raise ValueError(f"at most {MOST_SENTENCES} sentences are exported, not {len(sentences)}")

    def fill(work: Path) -> None:
        write_page(work)
        (work / "data").mkdir(exist_ok=True)
        write_data(opened, work / "data", sentences, progress)

    replace_folder(folder, fill, keep_previous=False, may_replace=_is_export)


def write_data(opened: Opened, folder: Path, sentences: Sequence[str], progress: Progress) -> None:
    """Write the scripts with the data."""
    index: dict[str, Any] = {
        "version": VERSION,
        "model": opened.facts(Limits()),
        "models": {"version": VERSION, "models": [{"model": opened.key, "name": opened.name}]},
        "blocks": None,
        "moves": None,
        "names": opened.names.described(),
        "sentences": list(sentences),
        "chunk": CHUNK,
        "chunks": 0,
        "vocabulary": None,
        "shown": browsing.SHOWN,
        "columns": None,
        "curve": None,
    }
    if has_log(opened.run):
        curves = dataclasses.asdict(read_curves(opened.run))
        index["curve"] = {"version": VERSION, "model": opened.key, "name": opened.name, **curves}
        index["curve"]["running"] = False
    if opened.num_states:
        known = _known(opened, progress)
        index["model"]["survey"]["state"] = "none" if known.survey is None else "done"
        index |= _about_states(known, progress)
        _write_blocks(known, folder)
        index["chunks"] = _write_states(known, folder, progress)
    _write(folder / "index.js", f"window.bighmmStatic = {_script(index)};\n")
    found = []
    for number, sentence in enumerate(sentences):
        found.append(about_sentence(opened.lm, sentence, bool(opened.num_states)))
        progress("sentences", number + 1, len(sentences))
    _write(folder / "sentences.js", f'window.bighmmChunk("sentences", 0, {_script(found)});\n')


def about_sentence(lm: LM, text: str, states: bool) -> dict[str, Any]:
    """The answers about a sentence; `gaps` has, for each word, what could stand there instead.

    In a sentence with gaps of its own, these are filled.
    """
    answer: dict[str, Any] = {"text": text, "score": answers.score(lm, [text], words=True)}
    if states:
        answer["posterior"] = answers.posterior(lm, text, top=5, words=6)
        answer["tag"] = answers.tag(lm, text)
        asked = [text] if MARK.search(text) else _blanked(lm, text)
        answer["gaps"] = [_filled(lm, one) for one in asked]
    return answer


def _blanked(lm: LM, text: str) -> list[str]:
    """The text with each of its words blanked in turn, as the page writes it.

    Words are what stands between spaces; one of several tokens becomes a gap of as many.
    """
    words = text.split()
    found, before = [], 0
    for i in range(len(words)):
        upto = len(lm.encode(" ".join(words[: i + 1])))
        size = max(1, upto - before)
        before = upto
        gap = "___" if size == 1 else f"___{size}"
        found.append(" ".join([*words[:i], gap, *words[i + 1 :]]))
    return found


def _filled(lm: LM, text: str) -> dict[str, Any]:
    """What the page asks about a text with gaps, or why there is no answer."""
    try:
        probs = answers.fill(lm, text, "probs", GAP_WORDS)
        return {"text": text, "probs": probs, "best": answers.fill(lm, text, "best", FILLINGS)}
    except ValueError as error:
        return {"text": text, "refused": str(error)}


def _known(opened: Opened, progress: Progress) -> browsing.Known:
    """What answers about states need, computed here and now."""
    with _staged("words of states", progress):
        summary = opened.summary.compute()
    tokens = survey = None
    if opened.corpus is not None:
        with _staged("tokens of the corpus", progress):
            survey = opened.survey.compute()
        tokens = opened.corpus.split(opened.split)
    names: Names = opened.names
    return browsing.Known(opened.hmm_lm, summary, tokens, survey, names.by_state)


def _about_states(known: browsing.Known, progress: Progress) -> dict[str, Any]:
    hmm, shares = known.lm.hmm(), known.shares
    found: dict[str, Any] = {}
    partition = hmm.support.partition
    of_states: list[int] | None = None
    if partition is not None:
        found["blocks"] = browsing.block_list(known)
        with _staged("moves between blocks", progress):
            found["moves"] = browsing.moves(known)
        size = hmm.num_states // partition.num_blocks
        of_states = [state // size for state in range(hmm.num_states)]
    found["columns"] = {
        "share": None if shares is None else shares.tolist(),
        "entropy_bits": known.summary.entropy.tolist(),
        "block": of_states,
        "tokens": [[i for i in row if i >= 0] for row in known.summary.tokens.tolist()],
    }
    tokenizer = known.lm.tokenizer
    found["vocabulary"] = [tokenizer.token(i) for i in range(tokenizer.size)]
    return found


def _write_blocks(known: browsing.Known, folder: Path) -> None:
    """Write the pages of all blocks, if the model has blocks."""
    partition = known.lm.hmm().support.partition
    if partition is not None:
        pages = [browsing.one_block(known, block) for block in range(partition.num_blocks)]
        _write(folder / "blocks.js", f'window.bighmmChunk("blocks", 0, {_script(pages)});\n')


def _write_states(known: browsing.Known, folder: Path, progress: Progress) -> int:
    """Write the pages of all states, and return the number of files."""
    count = known.lm.hmm().num_states
    starts = range(0, count, CHUNK)
    for number, first in enumerate(starts):
        states = list(range(first, min(first + CHUNK, count)))
        pages: list[dict[str, Any]] = [dict(page) for page in browsing.state_pages(known, states)]
        for page in pages:
            there = known.survey is not None
            page["contexts"] = browsing.state_contexts(known, page["state"]) if there else []
        script = f'window.bighmmChunk("states", {number}, {_script(pages)});\n'
        _write(folder / f"states-{number}.js", script)
        progress("pages of states", states[-1] + 1, count)
    return len(starts)


class _Stage:
    """A watcher that shows the progress of a stage."""

    def __init__(self, name: str, progress: Progress) -> None:
        self.name, self.progress = name, progress

    def check(self) -> None:
        return None

    def report(self, done: int, total: int) -> None:
        self.progress(self.name, done, total)


@contextmanager
def _staged(name: str, progress: Progress) -> Iterator[None]:
    with watched(_Stage(name, progress)):
        yield


def _script(value: Any) -> str:
    """A value as JavaScript; line separators of Unicode are escaped for old browsers."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _is_export(folder: Path) -> bool:
    """Whether a folder is an earlier export, which may be replaced."""
    names = {path.name for path in folder.iterdir()}
    return names <= {"index.html", "page", "data"} and (folder / "data" / "index.js").is_file()
