"""Show what sparsefam does on real data: `make demo` runs this.

`python -m examples.tour` runs five examples, and puts what they say, print and draw on one page,
demo/index.html, which it completes after every example.
"""

import contextlib
import io
import re
import time
from html import escape
from itertools import groupby
from pathlib import Path

import torch

import sparsefam as sf

from . import digits, estimation, leaves, pickups, stream
from .common import run

# The examples with options that keep each below a minute on one core, the first below 20 seconds.
STAGES = {
    estimation: "--folds 3",
    leaves: "--seeds 2",
    pickups: "--draws 120",
    stream: "--seeds 2 --epochs 15 --rates 0.03",
    digits: "--seeds 2 --canvases 2400",
}


def tables(printed: str) -> str:
    """Return what an example printed, with its tables as such, whose cells fit a phone."""
    rows = [re.split(" {2,}", line.strip()) for line in printed.strip().splitlines()]
    found = ""
    for is_table, group in groupby(rows, lambda row: len(row) > 1):
        lines = list(group)
        if not is_table:
            found += f"<pre>{escape(chr(10).join(row[0] for row in lines))}</pre>\n"
            continue
        width = len(lines[0])
        for row, tag in zip(lines, ["th", *["td"] * (len(lines) - 1)], strict=True):
            cells = [*row, *[""] * (width - len(row))]
            row[:] = [f"<{tag}>{escape(cell)}</{tag}>" for cell in cells]
        body = "".join(f"<tr>{''.join(row)}</tr>" for row in lines)
        found += f"<table>{body}</table>\n"
    return found


def section(title: str, text: str, picture: str, printed: str, command: str) -> str:
    """Return a section of the page; in the text, `this` is code and an empty line a paragraph."""
    text = re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text)).replace("\n\n", "</p>\n<p>")
    return (
        f"<section><h2>{escape(title)}</h2>\n<p>{text}</p>\n"
        f'<figure><img src="{picture}" alt="{escape(title)}"></figure>\n'
        f"{tables(printed)}<p><code>{command}</code></p></section>\n"
    )


def main(out: Path = Path("demo")) -> None:
    """Run all stages, and write the page after each."""
    versions = f"{sf.__version__} and torch {torch.__version__}"
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = template.replace("<!--versions-->", versions)
    body, path, start = "", out / "index.html", time.perf_counter()
    for number, (module, options) in enumerate(STAGES.items(), 1):
        title, text = module.__doc__.partition("\n\nReferences")[0].split("\n\n", 1)
        print(f"{number}/{len(STAGES)} {title}", flush=True)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run(module.main, [*options.split(), "--out", str(out)])
        print(printed.getvalue(), flush=True)
        picture = f"{module.__name__.split('.')[-1]}.png"
        command = f"python -m {module.__name__} {options}".rstrip()
        body += section(title.rstrip("."), text, picture, printed.getvalue(), command)
        path.write_text(template.replace("<!--body-->", body), encoding="utf-8")
    print(f"{path.resolve().as_uri()} ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    run(main)
