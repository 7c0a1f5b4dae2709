"""The path of tinygrad's `tinygrad.uop`; see `ops.py`."""
from tinygrad.graph.ops import Ops as Ops
