"""A tensor library whose compiler you can read. Start at `tensor/`, and follow the module docstrings.

>>> from tinygrad import Tensor
>>> (Tensor([1.0, 2.0]) * 2 + 1).tolist()
[3.0, 5.0]
"""
import importlib
from typing import TYPE_CHECKING, Any

from tinygrad import observer
from tinygrad.tensor import Tensor as Tensor  # before its methods, which it imports itself

# isort: split
from tinygrad.compat import settings
from tinygrad.device import Device as Device
from tinygrad.downloads import fetch as fetch
from tinygrad.dtype import dtypes as dtypes
from tinygrad.function import function as function
from tinygrad.functional.function import Function as Function
from tinygrad.functional.transforms import grad as grad
from tinygrad.functional.transforms import jvp as jvp
from tinygrad.functional.transforms import value_and_grad as value_and_grad
from tinygrad.functional.transforms import vjp as vjp
from tinygrad.functional.transforms import vmap as vmap
from tinygrad.graph.uop import UOp
from tinygrad.helpers import PROFILE, VIZ
from tinygrad.helpers import Context as Context
from tinygrad.helpers import GlobalCounters as GlobalCounters
from tinygrad.helpers import getenv as getenv
from tinygrad.jit import TinyJit as TinyJit

if TYPE_CHECKING:
    from tinygrad import nn as nn
    from tinygrad import viz as viz
    from tinygrad.viz.session import profile as profile


settings.register()


def __getattr__(name: str) -> Any:
    """`tinygrad.nn` and `tinygrad.viz`, which are read when they are first asked for: layers, archives and
    data sets take a tenth of the time that the import of the library takes."""
    if name in ("nn", "viz"):
        return importlib.import_module(f"tinygrad.{name}")
    if name == "profile":
        return importlib.import_module("tinygrad.viz.session").profile
    raise AttributeError(f"module 'tinygrad' has no attribute {name!r}")

Variable = UOp.variable


def _html_of(shown: Any) -> str:
    """What a notebook shows of a tensor, a schedule or a step of it."""
    return str(importlib.import_module("tinygrad.viz.picture").html_of(shown))


observer.html_of = _html_of
if VIZ or PROFILE:
    importlib.import_module("tinygrad.viz.session").begin(page=bool(VIZ), trace=bool(PROFILE))
