"""`UOp`, the one node type of every stage.

A node is (op, dtype, sources, argument). Nodes are immutable and interned: equal nodes are the same object,
so comparing is `is`, and structurally equal kernels are found by a dictionary look-up. The shape of a
tensor-graph node is computed when it is made, which is also where a wrong shape or dtype is refused
(`graph/shapes.py`). Index arithmetic (dtype `index`) is simplified as it is built, by `graph/symbolic/`.

Next on the path: `schedule/` decides which nodes become buffers and which fuse.
"""
from __future__ import annotations

import itertools
import struct
from _weakref import _remove_dead_weakref  # type: ignore[attr-defined]  # what `weakref` itself imports
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

from tinygrad.dtype import DType, accumulate_dtype, dtypes
from tinygrad.graph.attributes import Attribute, Synthesized, passed_below
from tinygrad.graph.movement import Movement
from tinygrad.graph.nest_nodes import NestNode
from tinygrad.graph.node_flags import CUT, FLAG_RULES, LEAF, PASSED_ON
from tinygrad.graph.operators import Operators
from tinygrad.graph.ops import Family, Memory, Ops, RangeKind, Visibility
from tinygrad.graph.shapes import SHAPES, elementwise_dtype
from tinygrad.graph.sharding import Layout, Placement, Sharding
from tinygrad.graph.sizes import (
    Size,
    before_reading,
    changed_sizes,
    is_symbolic,
    largest_shape,
    sizes_in,
    value_of,
)
from tinygrad.graph.storage import BufferSpec, ShardedStorage, Storage, place_of
from tinygrad.graph.walk import Walk
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.device import Buffer
    from tinygrad.shape.shapetracker import ShapeTracker

Shape: TypeAlias = tuple[int, ...]
_buffer_identities = itertools.count()
_interned: dict[tuple[Any, ...], ref[UOp]] = {}
"""Every node that exists, by its fields; sources by their `id`, for a node that exists keeps them, and a key
that kept them would keep what they lead back to: memory, a write into it that nobody can see any more, and
the nodes of that. What `weakref.WeakValueDictionary` does in a third of its time, for every node of every
step passes through here. Threads that make equal nodes get the same: `setdefault` lets one of them in."""


_recent_numbers: deque[UOp] = deque(maxlen=64)
"""Numbers in a tensor's shape that live a little longer: they are asked for again, in every step."""
_bits_of = struct.Struct("d").pack
"""A float as it is: 0.0 is not -0.0, and one NaN is another."""


class _Interned(ref["UOp"]):
    """A node's entry in `_interned`, which goes when the node dies."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


def _forget(entry: _Interned) -> None:
    _remove_dead_weakref(_interned, entry.key)  # not another thread's new node of that key


_MEMORY = FLAG_RULES[Ops.BUFFER](0, None)
"""The flags of memory of floats."""
_NO_FLOATS = _MEMORY & ~LEAF
_NO_LOOPS: frozenset[UOp] = frozenset()
CLOSING = {Ops.REDUCE: 1, Ops.STAGE: 1, Ops.STORE: 2, Ops.SCATTER: 3, Ops.MMA: 4}
"""Operations at which loops can end, and how many sources come before these at least."""


class UOp(Walk, Operators, Movement, NestNode):
    """One node. Make it with `UOp.new` or the builder methods, never by calling the class."""

    __slots__ = (
        "__dict__",
        "__weakref__",
        "arg",
        "computed_into",
        "device",
        "dtype",
        "flags",
        "line",
        "op",
        "shape",
        "src",
    )
    op: Ops
    dtype: DType
    src: tuple[UOp, ...]
    arg: Any
    shape: Shape
    """of the tensor it stands for; () for loop-nest and program nodes"""
    device: Any
    """the `Placement` that holds or computes this value: a device, or the tuple of several; None for
    constants, which any device can make"""
    flags: int
    """what else is known of it at once: see `graph/node_flags.py`"""
    computed_into: UOp | None
    """the view that this node's value was computed into, even if that was overwritten since"""
    line: int
    """the number of the user's line that asked for it, where somebody records (`observer.py`), or 0"""

    @staticmethod
    def new(op: Ops, dtype: DType, src: tuple[UOp, ...] = (), arg: Any = None,
            known: tuple[Shape, Any, int] | None = None) -> UOp:
        """The node with these fields: an existing one if there is one. `known`: its shape, device and traits,
        which follow from the fields, where another node has them too."""
        key = (op, dtype, _bits_of(arg) if type(arg) is float else arg, *map(id, src))
        entry = _interned.get(key)
        node = None if entry is None else entry()
        if node is not None:
            return node
        node = object.__new__(UOp)
        node.op = op
        node.dtype = dtype
        node.src = src
        node.arg = arg
        if known is not None:
            node.shape, node.device, node.flags = known
        else:
            rule = SHAPES.get(op)
            node.shape = () if rule is None else rule(node)
            device, found = None, 0
            for source in src:
                found |= source.flags
                if device is None:
                    device = source.device
            own = FLAG_RULES.get(op)
            found = found & PASSED_ON if own is None else own(found, arg)
            node.flags = found if dtype.is_float else found & ~(LEAF | CUT)
            node.device = place_of(arg) if op in _PLACED else device
        node.computed_into = None
        node.line = 0
        new = _Interned(node, _forget)
        new.key = key
        while (entry := _interned.setdefault(key, new)) is not new:
            other = entry()
            if other is not None:
                return other
            _remove_dead_weakref(_interned, key)
        return node

    def __repr__(self) -> str:
        from tinygrad.graph.printing import format_node

        return format_node(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return UOp.new, (self.op, self.dtype, self.src, self.arg)

    def __copy__(self) -> UOp:
        return self

    def __deepcopy__(self, memo: Any) -> UOp:
        return self

    def replace(self, *, dtype: DType | None = None, src: tuple[UOp, ...] | None = None,
                arg: Any = ...) -> UOp:
        """This node with some fields changed."""
        return UOp.new(self.op, self.dtype if dtype is None else dtype, self.src if src is None else src,
                       self.arg if arg is ... else arg)

    def with_sources(self, src: tuple[UOp, ...]) -> UOp:
        """This node over other sources, simplified where it is index arithmetic; itself over its own."""
        return self if src == self.src else UOp.simplified(self.op, self.dtype, src, self.arg)

    def is_over(self, node: UOp, src: tuple[UOp, ...]) -> bool:
        """Whether this is nothing but `node` over other sources."""
        return (self.op, self.dtype, self.arg, self.src) == (node.op, node.dtype, node.arg, src)

    @staticmethod
    def simplified(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any = None) -> UOp:
        """The node with these fields, simplified where it is index arithmetic, a load that never is, or an
        address that always is touched."""
        if op is Ops.INDEX and len(src) == 3 and src[2].op is Ops.CONST and src[2].arg is True:
            return UOp.new(op, dtype, src[:2], arg)
        if op in Family.ELEMENTWISE and (dtype.scalar is dtypes.index or dtype.is_bool):
            return _simplified(op, dtype, src, arg)
        if op is Ops.LOAD and any([v.op is Ops.CONST and v.arg is False for v in src[0].src[2:]]):
            return UOp.const(0, dtype)
        return UOp.new(op, dtype, src, arg)

    @Synthesized
    def ranges(self) -> frozenset[UOp]:
        """The RANGE nodes that this value depends on and that nothing below has closed: the loops it lives
        in."""
        found = frozenset({self}) if self.op is Ops.RANGE else _NO_LOOPS
        for source in self.src:
            loops = source.ranges
            if loops is not found and not loops <= found:
                found = found | loops if found else loops
        return found.difference(self.closed_ranges) if self.op in CLOSING else found

    @property
    def closed_ranges(self) -> tuple[UOp, ...]:
        """The loops that end at this loop-nest node (`CLOSING`), outermost first."""
        before = CLOSING.get(self.op)
        return () if before is None else tuple([s for s in self.src[before:] if s.op is Ops.RANGE])

    @Synthesized
    def closed_below(self) -> frozenset[UOp]:
        """Every loop that ends at this loop-nest node or at one under it."""
        found = frozenset(self.closed_ranges) if self.op in CLOSING else _NO_LOOPS
        for source in self.src:
            loops = source.closed_below
            if loops is not found and not loops <= found:
                found = found | loops if found else loops
        return found

    # --- where the value lives ------------------------------------------------------------------------------

    @Attribute
    def storage(self) -> Storage:
        """The memory of a BUFFER node."""
        if self.op is not Ops.BUFFER:
            raise RuntimeError(f"only a BUFFER node holds memory, not {self.op.name}")
        return Storage()

    @property
    def buffer(self) -> Buffer | None:
        """The memory of a BUFFER node, None until it has some."""
        return self.storage.buffer if self.op is Ops.BUFFER else None

    def set_buffer(self, buffer: Buffer | None) -> None:
        """Give a BUFFER node its memory, or take it away."""
        self.storage.buffer = buffer

    @property
    def is_overwritten(self) -> bool:
        """Whether the memory of this BUFFER node no longer holds what the node stands for."""
        return self.op is Ops.BUFFER and bool(self.storage.version != self.arg.version)

    @property
    def current(self) -> UOp:
        """This view of a BUFFER, over the node for what the memory holds now."""
        memory = self.viewed
        if not memory.is_overwritten:
            return self
        spec = memory.arg._replace(version=memory.storage.version)
        node = UOp.new(Ops.BUFFER, memory.dtype, (), spec)
        node.__dict__["storage"] = memory.storage
        return self.over(node)

    @property
    def realized_view(self) -> UOp | None:
        """A view of the BUFFER that holds this node's value; None while it is lazy, or overwritten."""
        view = self.computed_into
        return None if view is None or view.base.is_overwritten else view

    def set_realized_view(self, view: UOp | None) -> None:
        """`view`, of the same shape, holds this node's value, and so that of the nodes that it stands for."""
        if view is self or (view is not None and view.shape != self.shape):
            raise RuntimeError(f"{view} cannot hold the value of {self}: it is that, or of another shape")
        self.computed_into = view
        nodes = self.__dict__.get("_expanded") if view is not None else None
        if nodes is not None and nodes.realized_view is None:
            nodes.set_realized_view(view)
        if view is not None and self.device is None and not self.flags & LEAF and view.base.op is Ops.BUFFER:
            view.base.storage.holds_constants(self)

    @property
    def has_sizes(self) -> bool:
        """Whether a size that is not known is in this graph."""
        return Size.exists and self._has_sizes

    @Synthesized
    def _has_sizes(self) -> bool:
        return bool(sizes_in(self.arg)) or any(s._has_sizes for s in self.src)

    def with_sizes(self, change: Callable[[UOp], UOp]) -> UOp:
        """This view of a BUFFER, with the expression of each of its sizes changed."""
        if not self.has_sizes:
            return self
        src = tuple(s.with_sizes(change) for s in self.src)
        return self.replace(src=src, arg=changed_sizes(self.arg, change))

    @property
    def base(self) -> UOp:
        """The node below the movement ops on top of this one."""
        return passed_below(self, Family.MOVEMENT, "_base") if self.op in Family.MOVEMENT else self

    def over(self, base: UOp) -> UOp:
        """The movement ops of this view, over another node than its `base`."""
        way, node = [], self
        while node.op in Family.MOVEMENT:
            way.append(node)
            node = node.src[0]
        is_alike = (base.shape, base.device, base.flags) == (node.shape, node.device, node.flags)
        for m in reversed(way):
            base = UOp.new(m.op, m.dtype, (base, *m.src[1:]), m.arg,
                           (m.shape, m.device, m.flags) if is_alike else None)
        return base

    @property
    def is_zero(self) -> bool:
        """Whether this is the constant 0, repeated or not."""
        return self.base.op is Ops.CONST and bool(self.base.arg == 0)

    @property
    def viewed(self) -> UOp:
        """The node that this one is a view of, itself if it is none.

        Where that is in memory, this is too: the same memory. A PAD is no view: nobody's memory has its
        zeros, so one that is computed has memory of its own.
        """
        return passed_below(self, Family.VIEW, "_viewed") if self.op in Family.VIEW else self

    @Attribute
    def st(self) -> ShapeTracker:
        """How this node's items lie in its `base`: the ShapeTracker of the movement ops between them."""
        from tinygrad.shape.shapetracker import ShapeTracker

        return ShapeTracker.of_movements(self)

    @property
    def realized(self) -> Buffer | None:
        """The memory that holds this value (or that it is a view of), None while it is lazy."""
        viewed = (self.realized_view or self).viewed
        return (viewed.realized_view or viewed).viewed.buffer

    @property
    def srcs(self) -> tuple[UOp, ...]:
        """Another name of `src`."""
        return self.src

    @Attribute
    def numel(self) -> int:
        items: int = prod(self.shape)
        return items

    # --- sources --------------------------------------------------------------------------------------------

    @staticmethod
    def const(value: Any, dtype: DType, shape: Shape = ()) -> UOp:
        """A number, expanded to `shape`."""
        node = UOp.new(Ops.CONST, dtype, (), dtype.as_const(value))
        if not shape:
            return node
        ones = (1,) * len(shape)
        node = UOp.new(Ops.RESHAPE, dtype, (node,), ones)
        node = node if shape == ones else UOp.new(Ops.EXPAND, dtype, (node,), shape)
        _recent_numbers.append(node)
        return node

    @staticmethod
    def new_buffer(device: Placement, size: int, dtype: DType, layout: Layout | None = None, version: int = 0
                   ) -> UOp:
        """A BUFFER node of `size` items that no other node equals. Its memory comes when it is written."""
        node = object.__new__(UOp)  # one of its own, which nobody looks up
        node.op = Ops.BUFFER
        node.dtype = dtype
        node.src = ()
        node.arg = BufferSpec(next(_buffer_identities), device, size, version, layout)
        node.shape = (size,)
        node.device = device
        node.flags = _MEMORY if dtype.is_float else _NO_FLOATS
        node.computed_into = None
        node.line = 0
        node.__dict__["storage"] = Storage()
        return node

    @staticmethod
    def sharded_buffer(devices: tuple[str, ...], layout: Layout, shards: Sequence[UOp],
                       memories: Sequence[UOp] | None = None) -> UOp:
        """A BUFFER node of the layout's shape over `shards`, for each device a view of a BUFFER there; over
        others like those, if `memories` are given."""
        Sharding.exists = True
        storage = ShardedStorage(shards, memories)
        node = UOp.new_buffer(devices, prod(layout.shape), shards[0].dtype, layout, storage.version)
        node.shape = layout.shape
        node.__dict__["storage"] = storage
        return node

    @property
    def shards(self) -> tuple[UOp, ...]:
        """For each device of a BUFFER on several the view of a BUFFER that is its part of it, as it is now;
        this node alone for one on a single device."""
        storage = self.storage
        return tuple(p.current for p in storage.shards) if isinstance(storage, ShardedStorage) else (self,)

    @property
    def memories(self) -> tuple[UOp, ...]:
        """The BUFFER nodes, each on one device and there once, that the memory of this one is made of."""
        return tuple(dict.fromkeys([shard.viewed for shard in self.shards]))

    def over_memories(self, others: Mapping[UOp, UOp]) -> UOp:
        """A BUFFER node like this one, over the other BUFFER node for each of its `memories`."""
        if self.arg.layout is None:
            return others[self]
        shards = [shard.over(others[shard.viewed]) for shard in self.shards]
        return UOp.sharded_buffer(self.device, self.arg.layout, shards)

    @staticmethod
    def variable(name: str, low: int, high: int, value: int | None = None) -> UOp:
        """A symbolic integer in [low, high], bound to `value` when that is given."""
        return UOp.new(Ops.VARIABLE, dtypes.index, (), (name, low, high, value))

    def bind(self, value: int) -> UOp:
        """This VARIABLE with a value. Raises ValueError outside its bounds."""
        name, low, high, _ = self.arg
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"the variable {name} takes an integer, got {value!r}")
        value = int(value.__index__())
        if not low <= value <= high:
            raise ValueError(f"the variable {name} takes values from {low} to {high}, got {value}")
        return UOp.variable(name, low, high, value)

    def unbind(self) -> tuple[UOp, int]:
        """(this VARIABLE without its value, the value)."""
        for refuse in before_reading:
            refuse()
        name, low, high, value = self.arg
        if value is None:
            raise ValueError(f"the variable {name} has no value")
        return UOp.variable(name, low, high), value

    @property
    def val(self) -> int:
        """The number that an expression of bound VARIABLEs stands for. Raises SizeError for unbound ones."""
        for refuse in before_reading:
            refuse()
        return value_of(Size.of(self))

    @staticmethod
    def range(extent: int | UOp, identity: int, kind: RangeKind = RangeKind.LOOP) -> UOp:
        """A loop counter in [0, extent)."""
        if isinstance(extent, int):
            extent = UOp.const(extent, dtypes.index)
        return UOp.new(Ops.RANGE, dtypes.index, (extent,), (identity, kind))

    @staticmethod
    def sink(results: Iterable[UOp]) -> UOp:
        return UOp.new(Ops.SINK, dtypes.index, tuple(results))

    # --- elementwise ----------------------------------------------------------------------------------------

    def alu(self, op: Ops, *others: UOp) -> UOp:
        """`op` of this node and `others`, item by item: equal shapes, equal dtypes (WHERE: a bool first).

        Raises ValueError where shapes differ or devices differ, TypeError where dtypes do or `op` cannot take
        them.
        """
        src = (self, *others)
        dtype = elementwise_dtype(op, src)
        condition = dtype is dtypes.bool and self.dtype is dtypes.bool and not self.shape
        if condition or dtype.scalar is dtypes.index or self.dtype.scalar is dtypes.index:
            return _simplified(op, dtype, src, None)
        return UOp.new(op, dtype, src)

    def _operand(self, x: UOp | float | bool) -> UOp:
        if isinstance(x, UOp):
            return x
        if isinstance(x, Size) and self.dtype is not dtypes.index:
            return x.node.cast(self.dtype).reshape((1,) * len(self.shape)).expand(self.shape)
        return x.node if isinstance(x, Size) else UOp.const(x, self.dtype, self.shape)

    def cast(self, dtype: DType) -> UOp:
        """The value as `dtype`. Floats to integers round toward zero."""
        if dtype is self.dtype:
            return self
        dtype = dtype.vec(self.dtype.count)
        return self if dtype is self.dtype else UOp.new(Ops.CAST, dtype, (self,))

    def bitcast(self, dtype: DType) -> UOp:
        """The same bits read as `dtype`, which has the same width."""
        dtype = dtype.vec(self.dtype.count)
        if dtype.itemsize != self.dtype.itemsize:
            raise TypeError(f"bitcast keeps the width: {self.dtype} has {self.dtype.itemsize} bytes, "
                            f"{dtype} has {dtype.itemsize}")
        return self if dtype is self.dtype else UOp.new(Ops.BITCAST, dtype, (self,))

    # --- reduce and movement (tensor graph) -----------------------------------------------------------------

    def reduce(self, op: Ops, axes: Sequence[int]) -> UOp:
        """ADD, MAX or MUL over `axes`, which stay with size 1. Half types accumulate in float32."""
        axes = tuple(sorted(a for a in axes if self.shape[a] != 1))
        if not axes:
            return self
        wide = self.dtype if op is Ops.MAX or not self.dtype.is_float else accumulate_dtype(self.dtype)
        return UOp.new(Ops.REDUCE, wide, (self.cast(wide),), (op, axes)).cast(self.dtype)

    def under(self, op: Ops, arg: Any = None) -> UOp:
        return UOp.new(op, self.dtype, (self,), arg)

    @property
    def is_whole_buffer(self) -> bool:
        """Whether this is all of a BUFFER in row-major order. Of memory for the largest sizes: where it is
        used up to the sizes that it has."""
        viewed = self.viewed
        if viewed.op is not Ops.BUFFER or self is viewed:
            return self.op is Ops.BUFFER
        if not is_symbolic(self.shape):
            is_reshaped = self.unreshaped is viewed or (prod(self.shape) == prod(viewed.shape)
                                                        and self.st.contiguous_whole)
            return is_reshaped and not self.has_sizes
        memory = self.src[0]
        begins_whole = self.op is Ops.SHRINK and all(start == 0 for start, _ in self.arg)
        return begins_whole and memory.shape == largest_shape(self.shape) and memory.is_whole_buffer

    # --- graph control --------------------------------------------------------------------------------------

    def contiguous(self) -> UOp:
        """This value in a buffer of its own, in row-major order."""
        is_stored = self.op is Ops.CONTIGUOUS and self.arg is not Visibility.INTERMEDIATE
        return self if is_stored or self.is_whole_buffer else self.under(Ops.CONTIGUOUS)

    def intermediate(self) -> UOp:
        """This value stored for those alone who read it in the same schedule."""
        return self.under(Ops.CONTIGUOUS, Visibility.INTERMEDIATE)

    def detach(self, leaf: int | None = None) -> UOp:
        """This value as a constant to gradients; with `leaf`, as a variable of its own."""
        return self.under(Ops.DETACH, leaf)

    def live_out(self, condition: UOp) -> UOp:
        """This value, of which only the items where `condition` holds are ever read: what has to be stored of
        it is stored there only, and the other items of that memory hold anything."""
        return UOp.new(Ops.LIVE_OUT, self.dtype, (self, condition))

    def with_gradient(self, inputs: Sequence[UOp], rule: Callable[[UOp, UOp], tuple[UOp | None, ...]]) -> UOp:
        """This value, differentiated by `rule(gradient, node)`: a gradient, or None for zero, for each of
        `inputs`.

        What the rule returns is made of graph nodes, so it can be differentiated in turn.
        """
        return UOp.new(Ops.CUSTOM_GRADIENT, self.dtype, (self, *inputs), rule)

    def assign(self, value: UOp) -> UOp:
        """The value of this view of a buffer after `value` is written into it."""
        if self.shape != value.shape or self.dtype is not value.dtype:
            raise ValueError(f"cannot assign a {value.dtype} of shape {value.shape} "
                             f"to a {self.dtype} of shape {self.shape}")
        return UOp.new(Ops.ASSIGN, self.dtype, (self, value))

    def copy_to(self, place: Placement) -> UOp:
        """This value on another device; whole on each of several, where it is not on them in another way."""
        if self.device == place:
            return self
        return self.under(Ops.COPY, place if isinstance(place, str) else Sharding(place, None))

    def shard(self, sharding: Sharding) -> UOp:
        """This value spread over devices."""
        return self.under(Ops.COPY, sharding)

    # --- loop nest ------------------------------------------------------------------------------------------

    def index(self, offset: UOp, valid: UOp | None = None) -> UOp:
        """The address of item `offset` of this memory, to be touched only where `valid` holds."""
        src = (self, offset) if valid is None else (self, offset, valid)
        return UOp.simplified(Ops.INDEX, self.dtype.scalar, src)

    def load(self, lanes: int = 1) -> UOp:
        """The value at this address: `lanes` items side by side. Zero where it is not to be touched."""
        return UOp.simplified(Ops.LOAD, self.dtype.vec(lanes), (self,))

    def store(self, value: UOp, *ranges: UOp) -> UOp:
        """`value` written to this address, in every iteration of `ranges`."""
        return UOp.new(Ops.STORE, value.dtype, (self, value, *ranges))

    def reduce_ranges(self, op: Ops, *ranges: UOp) -> UOp:
        """This value accumulated over `ranges`; the counter of what runs once is none."""
        loops = [r for r in ranges if r.op is Ops.RANGE]
        return UOp.new(Ops.REDUCE, self.dtype, (self, *loops), op) if loops else self

    def stage(self, identity: int, memory: Memory, *ranges: UOp) -> UOp:
        """Memory holding this value for every iteration of `ranges`."""
        return UOp.new(Ops.STAGE, self.dtype, (self, *ranges), (identity, memory))

    # --- bounds of integers ---------------------------------------------------------------------------------

    @Attribute
    def bounds(self) -> tuple[int, int]:
        """The lowest and highest value that this index (or bool) expression can take."""
        from tinygrad.graph.symbolic import bounds_of

        return bounds_of(self)

    @property
    def extent(self) -> int:
        """The number of iterations of a RANGE; the most there can be where that is symbolic."""
        return self.src[0].bounds[1]


_PLACED = Family.TRANSFER | {Ops.BUFFER}
"""Operations whose argument says where the value is. Others are where their sources are."""


def _simplified(op: Ops, dtype: DType, src: tuple[UOp, ...], arg: Any) -> UOp:
    from tinygrad.graph.symbolic import simplified

    return simplified(op, dtype, src, arg)
