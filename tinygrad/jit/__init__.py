"""`TinyJit`, at the name that scripts import it from."""
from tinygrad.engine.jit import TinyJit as TinyJit
