"""Wheels that are read for the data in them: downloaded with pip, never installed."""

from pathlib import Path

VERSIONS = {"snmachine": "2.0.0.post3", "tslearn": "0.10.0", "seglearn": "1.2.5"}


def download(*packages: str) -> str:
    """Return the command that gets wheels."""
    names = " ".join(f"{x}=={VERSIONS[x]}" for x in packages)
    return f"pip download --no-deps -d DIR {names}"


def find(place: str, package: str) -> Path:
    """Return the wheel of a package, given itself or its folder.

    Raises:
        FileNotFoundError: There is none.
    """
    path = Path(place)
    found = sorted(path.glob(f"{package}-*.whl")) if path.is_dir() else [path]
    if not place or not found or not found[-1].is_file() or package not in found[-1].name:
        raise FileNotFoundError(
            f"no wheel of {package} in {place!r}; to get it: {download(package)}"
        )
    return found[-1]


HELP = (
    "the folder of the wheels with the light curves of PLAsTiCC and the held-out sets, or one of "
    f"these: {download(*VERSIONS)}"
)
