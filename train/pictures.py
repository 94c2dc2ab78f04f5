"""A figure as a picture that is small enough to be kept beside a text."""

import io
import pathlib

import PIL.Image
from matplotlib.figure import Figure


def save(figure: Figure, path: pathlib.Path) -> None:
    """Writes a PNG; the same figure gives the same bytes.

    >>> import tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "empty.png"
    >>> save(Figure(figsize=(4, 3)), path)
    >>> with PIL.Image.open(path) as picture:
    ...     picture.size
    (600, 450)
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    # A plot has few colours: with a palette it takes a third of the bytes.
    colours = PIL.Image.open(drawn).convert("RGB")
    colours.quantize(256, dither=PIL.Image.Dither.NONE).save(path, format="png", optimize=True)
