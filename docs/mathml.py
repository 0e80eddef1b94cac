"""MkDocs hook: formulas become MathML when the site is built, so reading needs no script."""

import html
import re
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)
# What latex2mathml lacks, in terms of what it has.
MACROS = {r"\arg": r"\operatorname{arg}"}
# Which stand a thin space away from what they are next to, if it is no operator or bracket.
FUNCTIONS = {"cos", "cosh", "cot", "exp", "ln", "log", "sin", "sinh", "tan", "tanh"}
NAMESPACE = "http://www.w3.org/1998/Math/MathML"


def on_page_content(content: str, **context: Any) -> str:
    """Replace what arithmatex marked.

    Raises:
        PluginError: A command that has no MathML, which the page would show as it was typed.
    """
    return FORMULA.sub(_replace, content)


def _replace(match: re.Match[str]) -> str:
    tex = html.unescape(match[2])
    known = re.sub(
        r"\\[A-Za-z]+", lambda command: MACROS.get(command[0], command[0]), tex
    )
    block = match[1] == "div"
    mathml = convert(known, display="block" if block else "inline")
    unknown = re.search(r">(\\[A-Za-z]+)<", mathml)
    if unknown:
        raise PluginError(f"docs/mathml.py: no MathML for {unknown[1]} in {tex}")
    return f'<div class="formula">{_spaced(mathml)}</div>' if block else _spaced(mathml)


def _spaced(mathml: str) -> str:
    """With the spaces around names of functions, which latex2mathml leaves out."""
    ElementTree.register_namespace("", NAMESPACE)
    root = ElementTree.fromstring(mathml)
    for row in root.iter(_tag("mrow")):
        for name in [x for x in row if _is_function(x)]:
            place = list(row).index(name)
            neighbors = {
                place + 1: row[place + 1 : place + 2],
                place: row[:place][-1:],
            }
            for side, beside in neighbors.items():
                if beside and beside[0].tag not in (_tag("mo"), _tag("mspace")):
                    row.insert(side, Element(_tag("mspace"), width="0.167em"))
    return ElementTree.tostring(root, encoding="unicode")


def _is_function(element: Element) -> bool:
    """A name, or one with an index or a power."""
    if element.tag in (_tag("msub"), _tag("msup"), _tag("msubsup")):
        element = element[0]
    return element.tag == _tag("mi") and element.text in FUNCTIONS


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"
