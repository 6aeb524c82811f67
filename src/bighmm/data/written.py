"""Who wrote a corpus that is not people's text: what the manifest says of it."""

from __future__ import annotations

from dataclasses import dataclass

from bighmm.base.settings import fill, shown
from bighmm.data.corpus import Corpus

WRITTEN = "written"  # the kind of such a source


@dataclass(frozen=True)
class Writer:
    """A language model that wrote a text."""

    name: str  # its folder, as it was given
    family: str
    sha256: str  # of config.json, which has the hashes of the other files
    trained_on: str | None  # the fingerprint of its training text; None if it is not known
    more: str | None = None  # that of the second text it was trained on, if there was one


def writers_of(corpus: Corpus) -> list[Writer]:
    """The models that wrote a corpus, of which the mean wrote it if there are several.

    Empty for a text of another kind. Raises ValueError if the manifest is damaged.
    """
    source, where = corpus.manifest["source"], f"{corpus.folder / 'manifest.json'} is damaged:"
    if source["kind"] != WRITTEN:
        return []
    found = source.get("writers")
    if not isinstance(found, list):
        raise ValueError(f"{where} its writers are {shown(found)}")
    return [fill(Writer, one, f"{where} a writer") for one in found]
