"""Sphinx configuration. The source directory is the repository root, so that links work on a code host and on the site.

The build needs no network: no fonts, scripts or inventories of other sites.
"""

from __future__ import annotations

import sys
from pathlib import Path

from puf_common.version import VERSION

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

project = "PUF"
author = "The PUF developers"
project_copyright = author
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/**", "examples/*/README.md"]
exclude_patterns = ["docs/_build"]

# MyST: headings get anchors as a code host makes them.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

# Docstrings put names and commands in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
nitpicky = True
# Types of the standard library, of other packages and of modules that the reference leaves out.
nitpick_ignore_regex = [("py:.*", r".*")]

html_theme = "furo"
html_title = "PUF"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
# The first page of the site is docs/index.html; index.html leads there.
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sourcelink = False
