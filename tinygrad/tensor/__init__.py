"""`Tensor`, and what it needs to know of the other tensors that there are.

`tensor` has the class: its state, computing, reading and writing; what tensors can do is in `functional/`.
`hostdata` makes arrays and nodes of data from Python, `writing` what is written into tensors of values;
`aliasing` knows which tensors show one value, `live` which there are at all, `keeping` whose values are
computed once, on their own, and `carried` those of a loop; `modes` are blocks of code in which tensors behave
otherwise; `generator` is the state of random numbers.
"""
from tinygrad.helpers import AttributeSetting
from tinygrad.tensor import carried as carried
from tinygrad.tensor.tensor import Operand as Operand
from tinygrad.tensor.tensor import Tensor as Tensor

AttributeSetting("TRAINING", Tensor, "training", lambda mode: bool(int(mode)))
