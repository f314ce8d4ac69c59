"""How Sphinx makes the site: `make site`.

The source folder is the repository, so that links between its files are links between pages. Nothing is fetched,
neither here nor by a reader's browser.
"""

import os
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "proto")]

from remote_udf.version import __version__  # noqa: E402

project = "remote-udf"
release = version = __version__
root_doc = "README"
include_patterns = ["*.md", "docs/**", "examples/README.md", "plugins/*/README.md"]
# What is excluded is not even looked through.
exclude_patterns = [".*", "build", "dist", "docs/site", "docs/images", "spark-warehouse", "tests", "udf_server"]

extensions = [
    "diagrams",
    "docstrings",
    "myst_parser",
    "source_files",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_external_toc",
    "sphinxcontrib.mermaid",
]
external_toc_path = "docs/site/toc.yml"

# Markdown as GitHub reads it.
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

# Mermaid itself, run while the site is made: no script in the page.
mermaid_output_format = "svg"
mermaid_params = ["--config", str(Path(__file__).parent / "mermaid.json")]
mermaid_cmd = shlex.join([sys.executable, "-m", "mermaidx", "--quiet"])

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
# As written, and not as it is on the machine that makes the site: a default may be os.environ.
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 120
toc_object_entries_show_parents = "hide"
nitpicky = True
nitpick_ignore_regex = [
    # The documentation of others is not here to link to.
    (
        "py:.*",
        r"(pyspark|random|types|pa|pyarrow|np|numpy|collections|datetime|pathlib|typing|logging|enum|contextlib|google|grpc)\b.*",
    ),
    # Types that a signature has and nobody needs to name.
    ("py:class", r"(remote_udf|spark_client|udf_server)\.\w+\..*"),
    # The same, of side buildings, which are imported when a method is called.
    ("py:class", r"Agree|ParquetFile|WriteMode"),
    # Names in single backticks link to the reference where they are in it.
    ("py:obj", r".*"),
]

copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_remove_prompts = True

smartquotes = False
html_theme = "furo"
html_title = f"remote-udf {release}"
html_search_scorer = "docs/site/search.js"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_use_index = html_domain_indices = False
html_show_sphinx = html_show_copyright = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"font-stack": "system-ui, sans-serif"},
    # Where the pencil of a page leads; without it there is none.
    "source_edit_link": os.environ.get("SITE_EDIT_LINK", ""),
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
