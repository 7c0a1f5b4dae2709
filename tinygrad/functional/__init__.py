"""What tensors can do, one family a module; `methods.py` binds each function as a method of `Tensor`.

`creation` makes tensors; `elementwise` has arithmetic, comparisons, bits, rounding and casts, with `division`
for quotients of floats; `mathematics` powers, exponentials and trigonometry, with `polynomials` and `powers`;
`activation` those of neural networks; `movement` changes shapes without computing; `reduce` has sums,
extrema, softmax, running sums and sorting; `linalg` multiplies matrices, `decompositions` factors them in the
steps of `factors`, `equations` solves with them; `indexing` selects and scatters; `windows` slides over
tensors, for `convolution` and `pooling`; `nn` has normalisation, dropout and attention; `losses` compares
with targets; `random` draws numbers; `interop` shares memory with other libraries. `transforms` makes
functions of functions, with `trees` of tensors; `function` defines gradients.

Every function only builds graph nodes. Nothing is computed here, except where a result's shape depends on
values (`nonzero`, boolean masks).
"""
