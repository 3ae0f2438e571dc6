"""The documentation site: ``make docs``. Pages are Markdown; warnings are errors."""

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
