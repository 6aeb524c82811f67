"""The words of a text that a vocabulary does not have."""

from __future__ import annotations

from collections.abc import Callable

from bighmm.data.tokenizers.protocol import Tokenizer


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The different words of a text that are encoded with the mark of unknown words, in its order.

    The mark itself is not among them.
    """
    unknown = tokenizer.unknown
    if unknown is None or unknown not in tokenizer.encode(text):
        return []
    split: Callable[[str], list[str]] = getattr(tokenizer, "split_line", str.split)
    words = dict.fromkeys(word for line in text.split("\n") for word in split(line))
    words.pop(tokenizer.token(unknown), None)
    return [word for word in words if unknown in tokenizer.encode(word)]
