"""Training: from a recipe and a corpus to a saved model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.train.expectation_maximisation import baum_welch
    from bighmm.train.recipe import Recipe, find_recipe, packaged_recipes, read_recipe
    from bighmm.train.run import Watch, train_run

__all__ = [
    *("Recipe", "Watch", "baum_welch", "find_recipe", "packaged_recipes", "read_recipe"),
    *("train_run",),
]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.train.expectation_maximisation": ("baum_welch",),
        "bighmm.train.recipe": ("Recipe", "find_recipe", "packaged_recipes", "read_recipe"),
        "bighmm.train.run": ("Watch", "train_run"),
    },
)
