"""Training: from a recipe and a corpus to a saved model."""

__all__: list[str] = []
