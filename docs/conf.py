"""The documentation site: `make docs` builds it offline into out/docs."""

from __future__ import annotations

import sys
from pathlib import Path

import tokmix

sys.path.insert(0, str(Path(__file__).parent))

project = "tokmix"
author = "tokmix contributors"
copyright = author
version = release = tokmix.__version__

extensions = ["myst_parser", "sphinx_copybutton", "site_pages"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["README.md", "_static", "**/.ipynb_checkpoints"]  # README.md is the index on a code host; index.md is the site's

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages that are parts of others start below the first level
nitpicky = True

html_theme = "furo"
html_title = f"tokmix {version}"
html_static_path = ["_static"]
html_css_files = ["tokmix.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1a5fb4", "color-brand-content": "#1a5fb4"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
}
copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = "$ "
