"""The files of the page, read once from the package. No other file is ever sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}


@dataclass(frozen=True)
class PageFile:
    """A file that is sent as it is."""

    content: bytes
    media_type: str


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """The files by address: index.html at /, the others at /page/…"""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in MEDIA_TYPES:
            name = path.relative_to(folder).as_posix()
            file = PageFile(path.read_bytes(), MEDIA_TYPES[path.suffix])
            found["/" if name == "index.html" else f"/page/{name}"] = file
    return found
