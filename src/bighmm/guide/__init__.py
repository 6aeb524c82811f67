"""Guiding a language model by an HMM, so that its texts satisfy a rule."""

__all__: list[str] = []
