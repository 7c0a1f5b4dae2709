"""`TinyJit`: a function of tensors is traced once, then the kernels it ran are replayed. docs/jit.md has the
contract.

`jit` traces calls and decides which are replayed; `trace` is what it keeps of one. `arguments` is what goes
into a call and comes out, `captured_state` the tensors around it, with `guard_paths`, which lead to them,
`arrays`, what it made tensors of, and `shape_guards`, comparisons of sizes: they say whether a trace may be
kept. `saved` takes traces to other processes. The kernels themselves are run again by `engine/replay.py`.
"""
from tinygrad.jit.jit import JitError as JitError
from tinygrad.jit.jit import TinyJit as TinyJit
