"""Links to files of the repository that are no pages of the site.

One to a file leads to a page with its text, one to a folder to a page with its files, or to its README.
"""

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.highlighting import PygmentsBridge
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

FOLDER = Path("files")
"""Where these pages are on the site."""
LINKED = "linked_files"
"""Which a page links to, a line each, in what Sphinx keeps of the page."""


class SourceLinks(SphinxTransform):
    """Replaces what the Markdown parser made of a link to a file, before it becomes a download."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        for node in [
            *self.document.findall(addnodes.download_reference),
            *self.document.findall(addnodes.pending_xref),
        ]:
            if isinstance(node, addnodes.pending_xref) and node.get("reftype") != "myst":
                continue
            target = Path(os.path.normpath(Path(self.env.doc2path(self.env.docname)).parent / node["reftarget"]))
            root = Path(self.env.srcdir)
            if not target.exists() or root not in target.parents:
                continue
            path = target.relative_to(root)
            if not (target / "README.md").exists():
                linked = self.env.metadata[self.env.docname]
                linked[LINKED] = f"{linked.get(LINKED, '')}{path.as_posix()}\n"
            uri = relative_uri(f"{self.env.docname}.html", f"{page_name(path, root)}.html")
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri))


def setup(app: Sphinx) -> dict[str, Any]:
    """For Sphinx."""
    app.add_transform(SourceLinks)
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": True}


def page_name(path: Path, root: Path) -> str:
    """Of the page of a file or folder; the path is below the root of the repository."""
    return (path / "README" if (root / path / "README.md").exists() else FOLDER / path).as_posix()


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, context and template of a page for each file and folder that some page links to, and what is below them."""
    assert isinstance(app.builder, StandaloneHTMLBuilder)
    highlighter = app.builder.highlighter
    root = Path(app.srcdir)
    linked = {line for data in app.env.metadata.values() for line in data.get(LINKED, "").splitlines()}
    waiting, done = sorted(map(Path, linked)), set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        if (root / path).is_dir():
            below = [child.relative_to(root) for child in sorted((root / path).iterdir()) if _is_shown(child)]
            waiting += [child for child in below if not (root / child / "README.md").exists()]
            body = _listing(page_name(path, root), below, root)
        else:
            body = _text(highlighter, root / path)
        title = html.escape(path.as_posix())
        yield page_name(path, root), {"title": title, "body": f"<h1><code>{title}</code></h1>{body}"}, "page.html"


def _is_shown(path: Path) -> bool:
    return not path.name.startswith((".", "__pycache__")) and path.suffix not in {".pyc", ".typed"}


def _listing(page: str, below: list[Path], root: Path) -> str:
    items = (
        f'<li><a href="{relative_uri(f"{page}.html", f"{page_name(path, root)}.html")}"><code>{html.escape(path.name)}'
        f"{'/' if (root / path).is_dir() else ''}</code></a></li>"
        for path in below
    )
    return f"<ul>{''.join(items)}</ul>"


def _text(highlighter: PygmentsBridge, path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name).aliases[0]
    except ClassNotFound:
        lexer = "text"
    return highlighter.highlight_block(path.read_text(errors="replace"), lexer, force=True)
