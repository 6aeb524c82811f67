"""Brown clusters of a corpus, cached in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from bighmm.base.files import check_hashes, sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.data import brown
from bighmm.data.corpus import Corpus
from bighmm.data.counting import count_tokens


def brown_clusters(
    corpus: Corpus, classes: int, progress: Callable[[int, int], None] | None = None
) -> brown.Clusters:
    """Brown clusters of the training split, read from the corpus' folder if they are cached there.

    progress: called with the number of words processed, and of how many.

    A tokenizer that shows two ids as the same string cannot be written as a paths file, so its
    clusters are not cached. Where the folder cannot be written, they are not cached either.
    """
    words = [corpus.tokenizer.token(i) for i in range(corpus.tokenizer.size)]
    train = corpus.split("train")
    path = corpus.folder / f"brown.{classes}.paths"
    unique = len(set(words)) == len(words)
    seal = path.with_suffix(".json")
    if path.exists() and unique:
        try:
            if seal.exists():  # files of the first version have none
                check_hashes(path.parent, read_object(seal), [path.name])
            return brown.read_paths(path, words, tokens=train)
        except (ValueError, FileNotFoundError):  # a damaged file of the cache is written again
            pass
    clusters = brown.cluster(train, corpus.tokenizer.size, classes, progress=progress)
    if unique:
        with contextlib.suppress(OSError):  # a full disk must not cost minutes of work
            seal.unlink(missing_ok=True)  # so that it is never that of another file
            brown.write_paths(path, clusters, words, count_tokens(train, len(words)))
            write_sealed(seal, {path.name: sha256_of(path)})
    return clusters
