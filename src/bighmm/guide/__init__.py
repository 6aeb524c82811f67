"""Guiding a language model by an HMM, so that what it writes satisfies a rule."""
