"""Training: from a recipe and a corpus to a saved model."""
