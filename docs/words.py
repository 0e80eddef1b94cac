"""Words of the documentation, and phrases that it must not contain.

`python docs/words.py` prints for every page its words (tokens with a letter), without what
benchmarks write between marks and without addresses; of these the words of prose, outside code,
tables and formulas; and what `wc -w` counts, all of it. Then it prints every phrase of PHRASES and
PATTERNS that it finds in prose, and every term of TERMS that the first pages use before they
define it, and exits with 1 if there are any. `--docstrings` prints what it finds in docstrings of
the package instead. tests/test_docs.py calls the same functions.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = ("README.md",)

# Distinctive parts of sentences that readers stumbled over: none may come back.
PHRASES = """
    A truncated parabola 1e-4 as wide as the function has an error of
    take 1/530 to 1/700 of
    losses and inference go on where densities are zero
    need Python 3.11 and a package index, nothing else
    compile their loops, once
    with densities of one bump, of several, or of any shape
    which says where there is nothing
    which $p$ collects the most score
    says how the price is counted
    has no weight at all, and a picture of the support says so
    It does not care how many observations there are, or where
    a question names the quadrant to look at
    So densities of one bump come last
    where likelihoods of unseen data are multiplied
    Where to read on
    The densities here end, or begin at
    A zero is a statement
    So mixtures and losses can go on
    What to ask of a density
    Maximum likelihood cannot tell a support to grow
    collects most of the score
    Take mass from one place to another
    ask it for support, entropy, draws or a plot
    Three parts, each on a page of its own, meet here
    An observation near the support still has some
    What does not matter is read anywhere
    the first tool of statistics fails
    Zeros are estimates too
    What attention, losses and moments ask of a density
    You need not choose
    What is not attended to is not learned from
    Sums do not ask in what order
    Time goes on, and a domain
    The chains look well and are wrong
    HMC and NUTS walk in unconstrained space
    depends on who is nested in whom
    Being told
    tell nobody when they take a bijection
    the further the worst of them deviates by chance
    Short answers to what people ask of libraries
    Not by moving draws: mass has to jump
    An instrument is off by at most so much
    Positions that no function reaches have no effect
    A moment that does not exist raises
    Of numbers, the support is cut
    To end at the data would put no mass
    a narrow hill is left
    In space the search for a bandwidth ends
    A value function mixes what it is fitted to
    An example begins anew where
    By what you are doing
    for those who need digits in another place
    produce nothing: not little, nothing
    What the zeros buy here is modest
    Who knows that people have a limit can say so
    A histogram has empty bins; a kernel density estimate has none
    somebody flushes the line
    Who has the folder
    It is taken by itself where all of this holds
"""

# Turns of phrase that are not idiomatic, and a better one.
PATTERNS = {
    r"(?:^|(?<=[.:;] ))Who(?:ever)? (?!\w+ a )": "if you",
    r"\b[Ww]hoever\b": "if you",
    r"(?:^|(?<=[.:;] ))What [^.?!:]*\b(?:is|are|was|were|does|has|comes|follows)\b[^.?!:]*\.": (
        "subject, verb, object"
    ),
    r"(?:^|(?<=[.:;] ))Of (?:numbers|vectors|points|the other\w*)\b": "for",
    r"\b(?:the ones?|that|those) of\b": "repeat the noun",
    r"\b(?:laws?)\b": "distribution",
    r"\bin the manner of\b": "after, like",
    r"\bas ever\b": "as always",
    r"\bby so much\b|\bat most so much\b": "name the amount",
    r"\bin the plane\b": "in 2-D",
    r"\b(?:in|through) space\b(?! and| or|-)": "in 3-D, in several dimensions",
    r"\bon the line\b": "in 1-D",
    r"\b(?:bumps?|hills?|needles?)\b": "peak, component, spike",
    r"\b(?:keeps?|kept|los(?:es?|t)|no|of|in|the) (?:its |their |most |all )?digits\b(?! of `)": (
        "accuracy"
    ),
    r"\b(?:ask|asks|asked) (?:it|of)\b": "query, need",
    r"\b(?:knows?|tells?|say|says) (?:nothing|nobody|where to look)\b": "name the subject",
    r"\b(?:goes|go|went) on where\b": "stay finite, keep working",
    r"\b1/\d{2,} (?:to 1/\d+ )?of (?:the|what)\b": "so many times faster",
    r"\b(?:cannot|can't) be told\b": "is not known",
    r"\bwithout an end\b": "unbounded",
}

# Terms of the field that the first pages may use only after they defined or linked them.
TERMS = {
    "score": r"\bscores?\b",
    "escort": r"\bescorts?\b",
    "prediction map": r"\bprediction map\b",
    "rpm": r"\brpm\b",
    "sigma": r"\bsigma\b|\\sigma\b",
    "scale": r"\bscale\b",
    "value function": r"\bvalue functions?\b",
}

CODE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
MADE = re.compile(r"<!-- ([\w ]+): made by .*?<!-- \1: end -->", re.S)


def pages() -> list[Path]:
    """Return the pages that are counted."""
    top = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*top, *sorted(ROOT.glob("docs/**/*.md"))]


def words(text: str) -> int:
    """Return the number of tokens with a letter, outside generated tables and addresses."""
    text = re.sub(r"\]\([^)]*\)|\]\[sparsefam[\w.]*\]", "]", MADE.sub("", text))
    return sum(bool(re.search("[A-Za-zα-ωΑ-Ω]", token)) for token in text.split())


def prose(text: str) -> str:
    """Return a text without code, tables, formulas, comments, addresses and marks of emphasis."""
    text = CODE.sub("", MADE.sub("", text))
    text = re.sub(r"^ *\|.*$|^ {4,}python .*$|^::: .*$", "", text, flags=re.M)
    text = re.sub(r"<!--.*?-->|</?\w[^>]*>|\$\$.*?\$\$", " ", text, flags=re.S)
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    return re.sub(
        r"`[^`\n]*`|\$[^$\n]*\$|\*+", lambda m: "" if "*" in m[0][:1] else m[0], text
    )


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs, headings and items of a text, each on one line."""
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|(?<=\n)(?=#)", prose(text)):
        if line := re.sub(r"^(?:[*-]|#+|\d+\.) ", "", " ".join(part.split())):
            yield line


def faults(text: str) -> list[str]:
    """Return the phrases and patterns in a text, each with what it is about."""
    found = []
    flat = " ".join(prose(text).split())
    phrases = [line.strip() for line in PHRASES.strip().splitlines()]
    found += [f"{x!r}: was to be rewritten" for x in phrases if x in flat]
    for line in paragraphs(text):
        bare = re.sub(r"`[^`]*`", "``", line)
        for pattern, better in PATTERNS.items():
            for match in re.finditer(pattern, bare):
                around = bare[max(0, match.start() - 20) : match.end() + 20]
                found.append(f"...{around}...: {better}")
    return found


def undefined(text: str) -> list[str]:
    """Return the terms that a page uses before it links them or puts them in bold or italics."""
    text = re.sub(r"^#.*$|</?\w[^>]*>|!\[[^\]]*\]", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    missing = []
    for term, pattern in TERMS.items():
        first = re.search(pattern, text)
        marked = re.search(rf"[*\[][^*\[\]\n]*(?:{pattern})[^*\[\]\n]*[*\]]", text)
        if first and (marked is None or marked.start() > first.start()):
            missing.append(term)
    return missing


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the docstrings of the package, each with its place."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for path in sorted(ROOT.glob("sparsefam/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                name = getattr(node, "name", "")
                yield (
                    f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name}",
                    text,
                )


def main() -> int:
    """Print the counts and the faults; return 1 if there are any."""
    if sys.argv[1:] == ["--docstrings"]:
        found = [f"{place}: {x}" for place, text in docstrings() for x in faults(text)]
        print("\n".join(found))
        return int(bool(found))
    totals, failed = [0, 0, 0], 0
    print("  words  prose   wc -w")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        counts = [words(text), words(prose(text)), len(text.split())]
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
        print("".join(f"{x:7,} " for x in counts) + str(page.relative_to(ROOT)))
    print("".join(f"{x:7,} " for x in totals) + "in all\n")
    for page in pages():
        name, text = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
        problems = faults(text)
        if name in FIRST:
            problems += [
                f"{term!r} is used before it is defined" for term in undefined(text)
            ]
        failed += len(problems)
        for problem in problems:
            print(f"{name}: {problem}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
