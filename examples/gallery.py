"""Pictures of the documentation, each for light and for dark pages.

`python -m examples.gallery` writes them into docs/assets; `make docs` draws them for the site anew.
What networks attended to is in gallery_attention.json, from `python -m examples.gallery_training`.
"""

import argparse
from pathlib import Path

import torch

from .families import families_picture
from .gallery_densities import ellipses_picture, families_of_both, tree_picture
from .gallery_errors import errors_picture
from .gallery_maps import images_picture, speakers_picture, words_picture
from .look import Look
from .page import Picture

__all__ = ["PICTURES", "main", "write"]

PICTURES: tuple[Picture, ...] = (
    families_picture(),
    tree_picture(),
    families_of_both(),
    words_picture(),
    images_picture(),
    speakers_picture(),
    ellipses_picture(),
    errors_picture(),
)


class _OnPage(Look):
    """Without a background: the page's shows."""

    @property
    def background(self) -> str:
        return "none"


def write(folder: Path, names: list[str]) -> list[Path]:
    """Draws the pictures of these names, or all of them, and hands back the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in PICTURES:
        if not names or picture.name in names:
            for dark in (False, True):
                path = folder / f"{picture.name}-{'dark' if dark else 'light'}.png"
                picture.save(path, _OnPage(dark))
                written.append(path)
    return written


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    known = [picture.name for picture in PICTURES]
    parser = argparse.ArgumentParser(description="Draw the documentation's gallery.")
    parser.add_argument("names", nargs="*", help=f"which (all): {', '.join(known)}")
    parser.add_argument("--out", type=Path, default=Path("docs/assets"), help="folder to write")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"names must be among {', '.join(known)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    for path in write(options.out, options.names):
        print(path)


if __name__ == "__main__":
    main()
