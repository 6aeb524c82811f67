"""The strings that stand after the fields of a dataclass."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap


@functools.cache
def field_docstrings(kind: type) -> dict[str, str]:
    """The strings that follow the fields of a class and its bases, on one line each."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError):  # a class that has no source file
            continue
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.split())
    return texts
