"""The documentation site: ``make docs``. Pages are Markdown and notebooks; warnings are errors."""

import json
import posixpath

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser

from coralopt import __version__

project = "coralopt"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"coralopt {__version__}"
exclude_patterns = ["_build"]
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "bysource"


class NotebookParser(MystParser):
    """Shows a notebook with the outputs that are kept in it; nothing is run (``make notebooks`` does that)."""

    supported = ("notebook",)

    def parse(self, inputstring, document):
        cells = json.loads(inputstring)["cells"]
        super().parse("\n\n".join(part for cell in cells for part in _parts(cell)), document)


def _parts(cell):
    """A cell as Markdown: words, code, and what it shows."""
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [text]
    parts = [_block("python", text)]
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("text", [])})
        html = "text/html" in data
        parts.append(_block("{raw} html" if html else "text", "".join(data["text/html" if html else "text/plain"])))
    return parts


def _block(kind, text):
    return f"````{kind}\n{text.rstrip()}\n````"


def _name_pages(app, doctree, docname):
    """A link whose words are the name of a file is called by the heading of that page."""
    for link in doctree.findall(nodes.reference):
        place = link.get("refuri", "").partition("#")[0].removesuffix(".html")
        page = posixpath.normpath(posixpath.join(posixpath.dirname(docname), place))
        if link.astext().endswith(".md") and page in app.env.titles:
            link.children = [nodes.Text(app.env.titles[page].astext())]


def setup(app):
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("doctree-resolved", _name_pages)
