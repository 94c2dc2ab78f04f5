"""A figure as SVG inside a page: colours that follow the page's, text as text, ids of its own."""

import html
import io
import re
import xml.etree.ElementTree as ET

import matplotlib
from matplotlib.figure import Figure

from train import plot_style

_VARIABLES = {
    plot_style.INK: "--ink",
    "#000000": "--ink",
    "#ffffff": "--plot",
    plot_style.GREY: "--muted",
    plot_style.GRID: "--grid",
    plot_style.BARS: "--bars",
    **{
        colour: f"--line-{number}"
        for number, colour in enumerate(plot_style.COLOURS)
        if colour != "#000000"
    },
}
"""Colours that the page sets, for light and for dark; those of a heat map stay."""


def inline(figure: Figure, name: str, title: str) -> str:
    """The figure without its title, which the page writes, as an element `<svg>`."""
    figure.suptitle("")
    written = io.StringIO()
    # Text stays text, in the page's own font; the salt makes identifiers repeat.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(written, format="svg", transparent=True, metadata=nothing)
    root = ET.fromstring(written.getvalue())
    _strip(root)
    _rename(root, name)
    for element in root.iter():
        if "fill" in element.attrib:  # The ground of a hatched bar; a page's colours need a style.
            fill, rest = element.attrib.pop("fill"), element.get("style", "")
            element.set("style", f"fill: {fill}; {rest}")
        if "style" in element.attrib:
            style = re.sub(r"font-family: [^;]*;? ?", "", element.attrib["style"])  # The page's.
            for colour, variable in _VARIABLES.items():
                style = re.sub(colour, f"var({variable})", style, flags=re.IGNORECASE)
            element.set("style", style)
    width, height = root.attrib.pop("width"), root.attrib.pop("height")
    root.attrib.pop("version", None)
    root.set("role", "img")
    root.set("style", f"--width: {_pixels(width)}px; --height: {_pixels(height)}px")
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    attributes = "".join(f' {key}="{html.escape(root.attrib[key])}"' for key in root.attrib)
    return f"<svg{attributes}><title>{html.escape(title)}</title>{body}</svg>"


def _strip(root: ET.Element) -> None:
    """Drops namespaces, metadata, indentation, and the style sheet, which would rule the page."""
    for element in root.iter():
        element.tail = None
        if element.text and not element.text.strip():
            element.text = None
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        element.tag = element.tag.partition("}")[2]
        for key in list(element.attrib):
            if "}" in key:
                element.set(key.partition("}")[2], element.attrib.pop(key))
        if "d" in element.attrib:  # A hundredth of a point is finer than any screen.
            element.set("d", re.sub(r"(\.\d\d)\d+", r"\1", element.attrib["d"]))
        for child in list(element):
            empty = "fill: none; stroke: #ffffff" in child.get("style", "")  # A tile without value.
            if empty or child.tag.endswith(("}metadata", "}style")):
                element.remove(child)


def _rename(root: ET.Element, name: str) -> None:
    """Keeps the ids that something refers to, and makes them unique in the page."""
    used = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "href" and value.startswith("#"):
                used.add(value[1:])
                element.set(key, f"#{name}-{value[1:]}")
            else:  # A clip path, or the pattern of a hatched bar, which is in a style.
                used.update(re.findall(r"url\(#([^)]+)\)", value))
                element.set(key, value.replace("url(#", f"url(#{name}-"))
    for element in root.iter():
        found = element.attrib.pop("id", None)
        if found in used:
            element.set("id", f"{name}-{found}")


def _pixels(points: str) -> int:
    return round(float(points.removesuffix("pt")) * 96 / 72)
