"""Tokenizers: text to token ids and back, behind one protocol.

For every kind of tokenizer a newline in the text is the end mark among the ids: "a b" is [a, b] and
"a b\\n" is [a, b, end].

- `Words`: a vocabulary of whole words, built from a training text.
- `Subwords`: a tokenizer file of the Hugging Face `tokenizers` library.
- `SentencePieces`: a SentencePiece model (needs the extra `bighmm[sentencepiece]`).
"""

from bighmm.data.tokenizers.files import TOKENIZER_FILES, load_tokenizer, open_tokenizer
from bighmm.data.tokenizers.protocol import END, UNKNOWN, Tokenizer
from bighmm.data.tokenizers.sentencepieces import SentencePieces
from bighmm.data.tokenizers.subwords import Subwords
from bighmm.data.tokenizers.unknown import unknown_words
from bighmm.data.tokenizers.words import Words

__all__ = [
    "END",
    "TOKENIZER_FILES",
    "UNKNOWN",
    "SentencePieces",
    "Subwords",
    "Tokenizer",
    "Words",
    "load_tokenizer",
    "open_tokenizer",
    "unknown_words",
]
