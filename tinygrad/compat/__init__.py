"""Names of tinygrad's that scripts use and that are no part of this library: what they mean here, or an error
that says what to write instead.

`helpers.py`, `dtype.py` and `device.py` have what scripts import from the modules of these names, which ask
`find` for names that they do not have (`helpers.elsewhere`). `settings.py` has the settings that do nothing
here, and `tensors.py` methods of `Tensor`. `tinygrad/function.py` and `tinygrad/uop/ops.py` stand at the
paths that scripts import them from. For users: docs/for_users_of_tinygrad.md.
"""
from __future__ import annotations

import importlib
from typing import Any

from tinygrad.helpers import elsewhere

PLACES = {"tinygrad.helpers": "tinygrad.compat.helpers", "tinygrad.dtype": "tinygrad.compat.dtype",
          "tinygrad.device": "tinygrad.compat.device"}
"""modules, and where names that scripts import from them are"""


def find(module: str, name: str) -> Any:
    """What a script means by this name of a module. Raises AttributeError where there is nothing."""
    if not name.startswith("__"):  # which Python and its tools ask every module for
        place = importlib.import_module(PLACES[module])
        if name in place.__all__:
            return getattr(place, name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


elsewhere.append(find)
