"""What tensors can do, one family a module; `tensor.py` binds each function as the `Tensor` method of its
name.

`creation` makes tensors; `elementwise` has arithmetic, comparisons, bits, rounding and casts; `mathematics`
powers, exponentials and trigonometry; `activation` those of neural networks; `movement` changes shapes
without computing; `reduce` has sums, extrema, softmax, running sums and sorting; `linalg` products of
matrices; `indexing` selects and scatters; `nn` has convolution, pooling, norms and losses; `random` draws
numbers.

Every function only builds graph nodes. Nothing is computed here, except where a result's shape depends on
values (`nonzero`, boolean masks).
"""
