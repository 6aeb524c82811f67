"""A server for questions to models in JSON, and a page on top of it where one sees their states.

`app` puts the server together, `security`, `limits` and `jobs` have what protects it, `addresses`
which address asks what, `opened` a model with what is kept of it, `serving` starts it, and `export`
writes the data of a page that needs no server. Answers come from `answers`, `inspect` and `lm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.explore.app import make_app
    from bighmm.explore.export import export_site
    from bighmm.explore.opened import Opened, open_all
    from bighmm.explore.serving import serve
    from bighmm.explore.settings import Limits

__all__ = ["Limits", "Opened", "export_site", "make_app", "open_all", "serve"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.explore.app": ("make_app",),
        "bighmm.explore.export": ("export_site",),
        "bighmm.explore.opened": ("Opened", "open_all"),
        "bighmm.explore.serving": ("serve",),
        "bighmm.explore.settings": ("Limits",),
    },
)
