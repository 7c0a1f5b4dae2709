"""Views: how the items of a tensor lie in memory, so that movement costs nothing.

`view` is one affine view (shape, strides, offset, mask) and what movement ops make of it; `shapetracker`
stacks views for what one of them cannot say, merges them where it can, and writes the address of an item.
"""
