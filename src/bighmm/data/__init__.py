"""Text, tokenizers, corpora of token ids, and batches for training.

`sources` finds and reads text, `pydoc_corpus` is the text that comes with Python, `tokenizers` turn
text into token ids, `corpus` stores the ids of a text in a folder, `batches` makes batches of them,
`brown` and `clusters` group the words, and `labels` stores one state per training token. Importing
this package loads nothing: `options` must be readable without NumPy.
"""

__all__: list[str] = []
