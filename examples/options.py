"""What the programs here do the same way: read their options, and say what is missing before they begin."""
from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Collection, Sequence
from pathlib import Path

from tinygrad.helpers import open_streams

PACKAGES = {"PIL": "pillow"}
"""what pip calls libraries of another name"""
WRITTEN = ("out", "weights", "adapters")
"""options that name a file which programs write when everything is done"""


def parse(parser: argparse.ArgumentParser, needs: Sequence[str] = (), **least: int) -> argparse.Namespace:
    """The options of the command line. It ends with an error where a library of `needs` is not installed,
    an option is smaller than `least` says, or a file of WRITTEN could not be written at the end. Streams that
    are closed are opened on nothing."""
    open_streams()
    args = parser.parse_args()
    for option, value in least.items():
        if getattr(args, option) < value:
            parser.error(f"--{option} takes at least {value}, got {getattr(args, option)}")
    missing = [PACKAGES.get(name, name) for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} not installed: python3 -m pip install {' '.join(missing)}")
    for option in WRITTEN:
        if getattr(args, option, None):
            suffixes = picture_suffixes(needs) if option == "out" else ()
            problem = why_not_written(Path(getattr(args, option)), suffixes)
            if problem:
                parser.error(f"--{option}: {problem}")
    return args


def why_not_written(path: Path, suffixes: Collection[str]) -> str:
    """What keeps a file from being written, as far as that can be seen before; "" where nothing does."""
    if path.is_dir():
        return f"{path} is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    if suffixes and path.suffix.lower() not in suffixes:
        return f"{path.name} has no name of a picture, such as {path.stem}.png"
    return ""


def picture_suffixes(needs: Sequence[str]) -> set[str]:
    """What pictures' names end with, for the libraries that draw them."""
    found: set[str] = set()
    if "matplotlib" in needs:
        from matplotlib.backend_bases import FigureCanvasBase

        found.update(f".{name}" for name in FigureCanvasBase.get_supported_filetypes())
    if "PIL" in needs:
        from PIL import Image

        found.update(Image.registered_extensions())
    return found
