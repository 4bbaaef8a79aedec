"""Sphinx configuration. The source directory is the repository root, so that links work on a code host and on the site.

The build needs no network: no fonts, scripts or inventories of other sites.
"""

from __future__ import annotations

import re

from pydantic import BaseModel
from sphinx.application import Sphinx
from sphinx.pycode import parser

from puf_common.version import VERSION

project = "PUF"
author = "The PUF developers"
project_copyright = author
version = release = VERSION

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs/**", "examples/*/README.md"]
exclude_patterns = ["docs/_build", "**/node_modules"]

# Headings get anchors as a code host makes them.
myst_heading_anchors = 4

# Docstrings put names and commands in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config"}
autodoc_type_aliases = {"ArrayLike": "ArrayLike", "NDArray": "NDArray"}
python_use_unqualified_type_names = True
# Types in signatures: the standard library, other packages, and our modules that the reference leaves out.
nitpick_ignore_regex = [("py:(class|obj|data|exc)", r".*")]

# A block without a language is output, not code.
highlight_language = "text"

html_theme = "furo"
html_title = "PUF"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
# The first page of the site is docs/index.html; index.html leads there.
html_additional_pages = {"index": "redirect.html"}
html_copy_source = False
html_show_sourcelink = False

# The comment above a field documents it.
parser.comment_re = re.compile(r"^\s*#:? ?(.*)\r?\n?$")


def plain_text(line: str) -> str:
    """Returns a line with the characters escaped that reStructuredText would read as markup, names in backticks aside."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def as_markup(_app: Sphinx, _what: str, _name: str, _subject: object, _options: object, lines: list[str]) -> None:
    """Rewrites a docstring, which is plain text, so that Sphinx shows it as written. Indented lines are examples."""
    markup: list[str] = []
    example = False
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith("    "):
            example = False
            line = plain_text(line)
        elif line and not example and not before:
            example = True
            markup += ["::", ""]
        markup.append(line)
    lines[:] = markup


def short_signature(
    _app: Sphinx,
    _what: str,
    _name: str,
    subject: object,
    _options: object,
    _signature: str | None,
    _returns: str | None,
) -> tuple[str, None] | None:
    """Leaves out the signature of a pydantic model: it repeats all fields with their defaults."""
    return ("", None) if isinstance(subject, type) and issubclass(subject, BaseModel) else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_markup)
    app.connect("autodoc-process-signature", short_signature)
