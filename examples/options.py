"""What the programs here do the same way: read their options, and say what is missing before they begin."""
from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence

PACKAGES = {"PIL": "pillow"}
"""what pip calls libraries of another name"""


def parse(parser: argparse.ArgumentParser, needs: Sequence[str] = (), **least: int) -> argparse.Namespace:
    """The options of the command line. It ends with an error where a library of `needs` is not installed, and
    where an option is smaller than `least` says."""
    args = parser.parse_args()
    for option, value in least.items():
        if getattr(args, option) < value:
            parser.error(f"--{option} takes at least {value}, got {getattr(args, option)}")
    missing = [PACKAGES.get(name, name) for name in needs if importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f"{', '.join(missing)} not installed: python3 -m pip install {' '.join(missing)}")
    return args
