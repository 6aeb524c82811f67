"""Latent variable distillation: a teacher's vectors of all training tokens, clustered into states.

After Liu et al. 2022 and Lee & Berg-Kirkpatrick 2025 (section 4, algorithm 1). `making.make_labels`
writes one state for each token, `labels.open_labels` reads them.
"""
