"""MkDocs hook: formulas become MathML when the site is built, so reading needs no script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# What latex2mathml lacks, in terms of what it has.
MACROS = {r"\arg": r"\operatorname{arg}"}


def on_page_content(content: str, **context: Any) -> str:
    """Replace what arithmatex marked.

    Raises:
        PluginError: A command that has no MathML, which the page would show as it was typed.
    """
    return FORMULA.sub(_replace, content)


def _replace(match: re.Match[str]) -> str:
    tex = html.unescape(match[2])
    known = re.sub(r"\\[A-Za-z]+", lambda command: MACROS.get(command[0], command[0]), tex)
    mathml = convert(known, display="block" if match[1] == "div" else "inline")
    unknown = re.search(r">(\\[A-Za-z]+)<", mathml)
    if unknown:
        raise PluginError(f"docs/mathml.py: no MathML for {unknown[1]} in {tex}")
    return mathml
