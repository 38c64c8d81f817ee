"""Hook of mkdocs.yml: pages link to files of the repository, which the site does not contain; there
such a link becomes the path as code."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

OUTSIDE = re.compile(r"\[[^\]]*\]\(((?:\.\./)+)([^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: object, **_: object) -> str:
    """Return the page's text with links that leave docs/ replaced by the file's path."""
    folder = PurePosixPath(page.file.src_uri).parent  # type: ignore[attr-defined]
    depth = len(folder.parts)

    def path_instead(link: re.Match[str]) -> str:
        up = link[1].count("../")
        return link[0] if up <= depth else f"`{link[2]}`"

    return OUTSIDE.sub(path_instead, markdown)
