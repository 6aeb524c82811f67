"""Latent variable distillation: a teacher's vectors of the training tokens, clustered into states.

After Liu et al. 2022 and Lee & Berg-Kirkpatrick 2025 (section 4, algorithm 1).
`labelling.make_labels` writes one state for each token, `data.labels.open_labels` reads them;
`from_language_model.distill_language_model` trains an HMM on texts that a language model writes.
"""

__all__: list[str] = []
