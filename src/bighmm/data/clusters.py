"""Brown clusters of a corpus, cached in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from bighmm.base import launch
from bighmm.base.files import check_hashes, sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.data import brown
from bighmm.data.corpus import Corpus
from bighmm.data.counting import Counted, count_together, count_tokens


def brown_clusters(
    corpus: Corpus, classes: int, progress: Callable[[int, int], None] | None = None
) -> brown.Clusters:
    """Brown clusters of the training split, read from the corpus' folder if they are cached there.

    progress: called with the number of words processed, and of how many.

    Several processes (`base.processes`), all of which must ask, count the text together; the first
    one clusters.

    A tokenizer that shows two ids as the same string cannot be written as a paths file, so its
    clusters are not cached. Where the folder cannot be written, they are not cached either.
    """
    if launch.asked_for():
        return _by_first(corpus, classes, progress)
    words = _words(corpus)
    found = _cached(corpus, classes, words)
    return _store(corpus, classes, words, progress, None) if found is None else found


def _by_first(
    corpus: Corpus, classes: int, progress: Callable[[int, int], None] | None
) -> brown.Clusters:
    from bighmm.base import processes  # with torch, which is slow to load

    here, words, found = processes.current(), _words(corpus), None
    with here.first_does() as mine:
        if mine:
            found = _cached(corpus, classes, words)
    if here.from_first(found is None):
        counted = count_together(corpus.split("train"), corpus.tokenizer.size)
        with here.first_does() as mine:
            if mine:
                found = _store(corpus, classes, words, progress, counted)
    return here.from_first(found)


def _words(corpus: Corpus) -> list[str]:
    return [corpus.tokenizer.token(i) for i in range(corpus.tokenizer.size)]


def _cached(corpus: Corpus, classes: int, words: list[str]) -> brown.Clusters | None:
    """The clusters in the corpus' folder, if there are any that are whole.

    Files of the first version have no seal, so nothing says whether they are. They are computed
    again.
    """
    train = corpus.split("train")
    path, unique = _path(corpus, classes), brown.can_be_written(words)
    seal = path.with_suffix(".json")
    if path.exists() and seal.exists() and unique:
        try:
            check_hashes(path.parent, read_object(seal), [path.name])
            found = brown.read_paths(path, words, tokens=train)
            return found if len(found.paths) == classes else None
        except (ValueError, FileNotFoundError):  # a damaged file of the cache is written again
            pass
    return None


def _store(
    corpus: Corpus,
    classes: int,
    words: list[str],
    progress: Callable[[int, int], None] | None,
    counted: Counted | None,
) -> brown.Clusters:
    """New clusters, which are written to the corpus' folder if that is possible."""
    train, path = corpus.split("train"), _path(corpus, classes)
    clusters = brown.cluster(
        train, corpus.tokenizer.size, classes, progress=progress, counted=counted
    )
    seal = path.with_suffix(".json")
    if brown.can_be_written(words):
        with contextlib.suppress(OSError):  # a full disk must not cost minutes of work
            seal.unlink(missing_ok=True)  # so that it is never that of another file
            brown.write_paths(path, clusters, words, count_tokens(train, len(words)))
            write_sealed(seal, {path.name: sha256_of(path)})
    return clusters


def _path(corpus: Corpus, classes: int) -> Path:
    return corpus.folder / f"brown.{classes}.paths"
