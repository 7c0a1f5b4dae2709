"""The differential suite: every op of the tensor surface against PyTorch, over dtypes, layouts and gradients.

`table.py` says what a row is, and compares. A family of ops is a module with a list `ROWS`, gathered in
`rows.py`; adding an op means adding a row there, and `test_coverage.py` fails for a method of `Tensor` that
has none. The tests are in `test_rows.py` (values and gradients), `test_derivatives.py` (finite differences,
first and second derivatives), `test_casts.py` (every pair of dtypes) and `test_indexing.py` (`x[...]` and
`x[...] = v`).
"""
