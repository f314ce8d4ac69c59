"""Pictures in Mermaid get a frame of their own, which the style sheet lets scroll where the window is narrow."""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinxcontrib.mermaid import mermaid


class Frames(SphinxTransform):
    """Puts each picture into a container of the class "diagram"."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        for picture in list(self.document.findall(mermaid)):
            picture.replace_self(nodes.container("", picture.deepcopy(), classes=["diagram"]))


def setup(app: Sphinx) -> dict[str, Any]:
    """For Sphinx."""
    app.add_transform(Frames)
    return {"parallel_read_safe": True}
