"""`bighmm recipes`: the recipes of the package, and what is in one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from bighmm.cli.common import AsJson, out, parse, print_json
from bighmm.train.recipe import about_recipe, find_recipe, packaged_recipes, recipe_text


@dataclass(frozen=True)
class RecipesArguments:
    """The recipes of the package with a line each; or all of one, which may be a file."""

    name: Annotated[
        str | None,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[RECIPE]", help="The name of one, or a file."),
    ] = None
    as_json: AsJson = False


def recipes_command(argv: list[str]) -> None:
    """List the packaged recipes, or print one."""
    arguments = parse(RecipesArguments, argv, "recipes")
    if arguments.name is None:
        known = {name: about_recipe(name) for name in packaged_recipes()}
        if arguments.as_json:
            print_json({"recipes": known})
            return
        console, width = out(), max(map(len, known))
        for name, about in known.items():
            console.print(f"{name:{width}}  {about}", markup=False)
        console.print("\nbighmm recipes NAME prints one, bighmm train NAME trains by it.")
        return
    recipe = find_recipe(arguments.name)
    if arguments.as_json:
        print_json({"name": arguments.name, "recipe": recipe.to_dict()})
    else:
        out().print(recipe_text(arguments.name).rstrip("\n"), markup=False)
