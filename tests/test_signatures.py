"""Names and signatures that users rely on change in a diff, and never by accident."""

from tests import signatures


def test_public_signatures_are_those_of_the_file() -> None:
    """Made by `python -m tests.signatures`."""
    assert signatures.text() == signatures.FILE.read_text()
