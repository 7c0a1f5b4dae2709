"""`Tensor`, what the user writes: a mutable handle on one node of an immutable graph.

Every method builds nodes and computes nothing, until a value is asked for (`realize`, `numpy`, `item`). This
module holds the state (node, gradient, device), computing, reading and writing. What tensors can do is in
`functional/`, one family a module; `functional/methods.py` binds those functions as methods and is the index
of the interface. Next on the path: `graph/uop.py`, the nodes.

Leaves. A tensor is a leaf where its node is memory (a BUFFER, reshaped at most), memory about to be
overwritten (ASSIGN), or a constructor's expression marked with an identity, DETACH(leaf). `backward` gives
`.grad` to the live leaves in the graph and to results that depend on none of them, except those with
`requires_grad=False`, and to results that set `requires_grad=True`.
"""
from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, ParamSpec, TypeAlias, TypeVar

import numpy as np

from tinygrad import observer
from tinygrad.device import canonical_device
from tinygrad.dtype import DType, DTypeLike, dtype_from_numpy, dtypes, to_dtype
from tinygrad.engine.capture import Capture
from tinygrad.engine.realize import realize_uops
from tinygrad.functional.methods import Methods
from tinygrad.graph.batch import is_unknown
from tinygrad.graph.leaf_tensors import (
    below_detaches,
    depends_on_leaf,
    is_cut_off,
    is_leaf,
    own_memory,
    repeats_items,
    storage_view,
)
from tinygrad.graph.node_flags import APPLIED, COSTLY, LEAF, MEMORY, WRITES
from tinygrad.graph.ops import Ops
from tinygrad.graph.sharding import Cut, Devices, Placement, Sharding
from tinygrad.graph.sizes import Size, largest_shape
from tinygrad.graph.template import call_alone, calls_to_compute, expanded, is_expanded, with_results_of_calls
from tinygrad.graph.uop import Shape, UOp
from tinygrad.graph.writes import with_writes
from tinygrad.helpers import engine_lock, exclusive, prod
from tinygrad.schedule.items import ScheduledSteps, ScheduleItem
from tinygrad.schedule.sharded_results import layout_of
from tinygrad.tensor import live, reading, writing
from tinygrad.tensor.aliasing import AliasSet
from tinygrad.tensor.history import LOOKS
from tinygrad.tensor.hostdata import array_of, memory_of
from tinygrad.tensor.keeping import keep_values, schedule_with_kept
from tinygrad.tensor.live import (
    LIVE,
    LeavesOfTensors,
    Unrealized,
    flags_of,
    notes_of,
    placed,
    unrealized_tensors,
    with_nodes,
    with_pending_readers,
)
from tinygrad.tensor.modes import no_grad, test, train

P = ParamSpec("P")
R = TypeVar("R")
Number: TypeAlias = bool | int | float
Operand: TypeAlias = "Tensor | Number | np.ndarray[Any, Any] | np.generic"


class Tensor(Methods):
    """An n-dimensional array of one dtype, on one device, computed lazily and differentiable.

    `data` is a number, a (nested) list or tuple of them, a NumPy array or scalar, bytes (as uint8), a
    memoryview (all of them copied: `Tensor.from_dlpack` shares memory), a path (`from_file`), a graph node,
    another Tensor, or None (empty). Raises ValueError for ragged lists and unknown devices, TypeError for
    data or dtypes that no tensor can hold.

    >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([1, 1])).tolist()
    [3, 7]
    """

    _uop: UOp
    _device: Placement
    _requires_grad: bool | None = None
    _left: Tensor | Callable[[], Tensor] | None = None
    """the gradient that was left here, or what makes it: of those of a replay few are ever read"""
    _was_leaf: bool = False
    """whether this is a leaf that took another value: `backward` goes on giving it a gradient"""
    _may_be_invalidated: bool = False
    _given_up: bool = False
    _was_looked_at: bool = False
    """whether `Unrealized.tensors` knows of it"""
    _is_writer: bool = False
    """whether this is nobody's, but stands for a write into memory that is still to be done"""
    _first_gradient_use: str | None = None
    """what was first done with `.grad` under TinyJit: set, used (read or added to) or refused"""
    _alias_set: AliasSet | None = None
    _left_together: Sequence[weakref.ref[Tensor]] = ()
    """of a gradient: all that the same `backward` left"""

    training: ClassVar[bool] = False
    """Whether layers behave as in training; also `with Tensor.train():` and the setting TRAINING."""
    no_grad = no_grad
    train = train
    test = staticmethod(test)
    __array_priority__ = 1000

    def __init__(self, data: Any = None, device: Devices | None = None, dtype: DTypeLike | None = None,
                 requires_grad: bool | None = None) -> None:
        kind = None if dtype is None else to_dtype(dtype)
        place = canonical_device(device)
        if isinstance(data, Tensor):
            uop = data.uop
            place = data.device if device is None else place
        elif isinstance(data, (UOp, Size)):
            data = data.node if isinstance(data, Size) else data
            uop = data.cast(_integers_within(*data.bounds)) if data.dtype is dtypes.index else data
            place = (data.device or place) if device is None else place
        elif isinstance(data, np.generic):  # before float, which NumPy's float64 is one of
            kind = dtype_from_numpy(data.dtype) if kind is None else kind
            uop = UOp.const(kind.checked(data.item()), kind)
        elif isinstance(data, (bool, int, float)):
            kind = dtypes.from_py(data) if kind is None else kind
            uop = UOp.const(kind.checked(data), kind)
        elif isinstance(data, os.PathLike):
            file = Tensor.from_file(data, kind)
            uop, place = file.uop, file.device if device is None else place
        else:
            uop = memory_of(array_of(data, kind), place if isinstance(place, str) else place[0])
        uop = uop if kind is None else uop.cast(kind)
        uop = uop if uop.device is None else uop.copy_to(place)
        self._init(uop, place)
        if requires_grad or (requires_grad is None and not isinstance(data, (Tensor, UOp))):
            self._become_leaf()
        self._requires_grad = requires_grad

    def _init(self, uop: UOp, device: Placement) -> None:
        self._uop, self._device = uop, device
        LIVE[weakref.ref(self, LIVE.pop)] = None
        if (watcher := observer.active) is not None and uop.op is not Ops.BUFFER:
            watcher.tensor_made(uop)

    @staticmethod
    def of(uop: UOp, *operands: Tensor) -> Tensor:
        """The result of an operation: a tensor on the operands' device, a constant under `no_grad`."""
        if no_grad.state.depth and depends_on_leaf(uop):
            uop = uop.detach()
        result = object.__new__(Tensor)
        device = uop.device
        if device is None:
            device = operands[0]._device if operands else canonical_device(None)
        result._uop, result._device = uop, device  # as `_init` does: a call less, for each operation
        LIVE[weakref.ref(result, LIVE.pop)] = None
        if (watcher := observer.active) is not None and uop.op is not Ops.BUFFER:
            watcher.tensor_made(uop)
        return result

    @staticmethod
    def view_of(uop: UOp, source: Tensor) -> Tensor:
        """A view of `source`: what is written through one of the two, both show."""
        result = Tensor.of(uop, source)
        return result if source._is_in_memory else source._alias_with(result)

    @property
    def _is_in_memory(self) -> bool:
        return self._uop.flags & MEMORY != 0

    @property
    def _is_fully_realized(self) -> bool:
        """Whether this stands for memory as it is: it is not lazy, and nothing is to be written there."""
        return self._uop.flags & (MEMORY | WRITES) == MEMORY

    def _alias_with(self, other: Tensor) -> Tensor:
        alias_set = self._alias_set or AliasSet(self)
        view = self._uop.realized_view
        if view is not None and live.takes(self, view.base.storage):
            view.base.storage.give_to(alias_set)
        alias_set.add(other)
        return other

    @staticmethod
    def leaf(uop: UOp, device: Devices | None = None, requires_grad: bool | None = None) -> Tensor:
        """A constructor's result: a tensor of its own, which `backward` gives a gradient if it is a float."""
        result = object.__new__(Tensor)
        known = uop.device if device is None else None
        result._init(uop, canonical_device(device) if known is None else known)
        if requires_grad is not False:
            result._become_leaf()
        result._requires_grad = requires_grad
        return result

    def _become_leaf(self) -> None:
        """Make the node of a float tensor a gradient target of its own; integers never get a gradient. What
        was a constant to them leaves those that show the same value, which stay constants."""
        if self.dtype.is_float and not is_leaf(self.uop):
            leaf = writing.leaf_of(self.uop)
            if is_cut_off(self.uop):
                self.uop = leaf
            else:
                self._show(leaf)

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_values, (self.numpy(), self.device, self.dtype.name, self._requires_grad, self._cuts)

    def __copy__(self) -> Tensor:
        """Another tensor that stands for the same value, in the same memory once it is computed."""
        result = object.__new__(Tensor)
        result._init(self.uop, self.device)
        result._requires_grad, result._grad = self._requires_grad, self._grad
        return result if self._is_in_memory else self._alias_with(result)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A tensor of its own memory, with its own copy of the gradient."""
        result = memo[id(self)] = _with_values(self.numpy(), self.device, self.dtype, self._requires_grad,
                                               self._cuts)
        if self._grad is not None and not self._grad._given_up:
            result.grad = copy.deepcopy(self._grad, memo)
        return result

    @property
    def _cuts(self) -> tuple[Cut, ...]:
        """The axes along which this tensor is divided among its devices."""
        on_several = isinstance(self.device, tuple) and self.uop.device is not None
        return layout_of(self.uop).cuts if on_several else ()

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def uop(self) -> UOp:
        """The graph node of this tensor's value.

        Where this is a view of memory that another handle was assigned to, that is written first: what is
        built on the view sees it.
        """
        node = self._uop
        if node.flags & MEMORY:
            memory = node.src[0] if node.op is Ops.RESHAPE else node  # as most are
            memory = memory if memory.op is Ops.BUFFER else below_detaches(memory)
            if memory.op is Ops.BUFFER:
                if memory.storage.writer is not None:
                    self._write_pending(memory)
                if memory.storage.version != memory.arg.version:
                    self._uop = self._uop.substitute({memory: memory.current})
                return self._uop
        return self._expand_nodes() if node.flags & APPLIED else node

    @uop.setter
    def uop(self, node: UOp) -> None:
        self._uop = node
        self._alias_set = None
        Unrealized.note(node)

    def _expand_nodes(self) -> UOp:
        """Stand for the nodes of an operation, where so far one node stood for all of them."""
        if self._alias_set is not None and self._uop.flags & APPLIED:
            self._alias_set.expand()
        self._uop = expanded(self._uop)
        return self._uop

    @property
    def _result(self) -> UOp:
        """As `uop`, to view, to compute and to read it: that needs none of an operation's nodes."""
        return self._uop if self._uop.flags & APPLIED else self.uop

    def _show(self, node: UOp) -> None:
        """Stand for `node`, another one of the same value, together with the views of this tensor."""
        if self._alias_set is None or self._uop is not self._alias_set.base:
            self.uop = node
        else:
            self._alias_set.show(node)

    def _show_whole(self, node: UOp) -> None:
        """Stand for `node`, another one of the whole value, or a view of it as before, together with all that
        are views of that value."""
        if self._aliased is None:
            self.uop = node
        else:
            self._aliased.show(node)

    def substitute(self, changes: Mapping[UOp, UOp]) -> None:
        """Stand for the node with `changes` made to its graph, as all do that share its value."""
        if self._alias_set is None:
            self.uop = self.uop.substitute(changes)
        else:
            self._alias_set.substitute(changes)

    @staticmethod
    @exclusive
    def _write_pending(memory: UOp) -> None:
        """Write what another handle of this memory was assigned."""
        writer, memory.storage.writer = memory.storage.writer, None
        if isinstance(writer, Tensor):
            writer.realize()

    @property
    def lazydata(self) -> UOp:
        """The graph node, under its older name."""
        return self.uop

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        return self._uop.shape

    @property
    def dtype(self) -> DType:
        """The type of the items."""
        return self._uop.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._uop.shape)

    @property
    def device(self) -> Any:
        """The name of the device that holds or will compute the value; the tuple of names, of several."""
        return self._uop.device or self._device

    @property
    def T(self) -> Tensor:
        """The last two axes swapped (all axes reversed, for up to two)."""
        return self.transpose(-1, -2) if self.ndim > 1 else self

    @property
    def requires_grad(self) -> bool | None:
        """True: `backward` gives `.grad`. False: never, as for constants (`detach`, `no_grad`). None: it does
        unless this was computed from another live tensor that has one. Integers never get one."""
        return False if self._requires_grad is None and is_cut_off(self._uop) else self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool | None) -> None:
        if value and not depends_on_leaf(self._result):
            self._become_leaf()
        self._requires_grad = value

    def requires_grad_(self, requires_grad: bool | None = True) -> Tensor:
        """Set `requires_grad`, and return this tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def _grad(self) -> Tensor | None:
        """The gradient, whether or not it can still be computed."""
        left = self._left
        if left is None or isinstance(left, Tensor):
            return left
        with engine_lock:
            if self._left is left:
                self._left = left()
            return self._grad

    @_grad.setter
    def _grad(self, value: Tensor | None) -> None:
        self._left = value

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` left. Raises RuntimeError where it can no longer be computed: those of
        tensors that do not say `requires_grad=True` are given up, if nobody asked for one of them, when what
        they depend on is overwritten, or the function under TinyJit that took them ends."""
        self._first_gradient_use = self._first_gradient_use or "used"
        gradient = self._grad
        if gradient is not None and gradient._given_up:
            raise RuntimeError("this gradient was not computed before the tensors it depends on were "
                               "overwritten, or the call under TinyJit that took it ended; set "
                               "requires_grad=True to have it kept, or read it before that")
        if gradient is not None and gradient._may_be_invalidated:
            reading.keep_gradients_of(gradient)
        return gradient

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and value.shape != self.shape:
            raise ValueError(f"a gradient of shape {value.shape} does not fit a tensor of shape {self.shape}")
        with engine_lock:
            self._first_gradient_use = self._first_gradient_use or "set"
            self._grad = value

    def _repr_html_(self) -> str:
        """For notebooks: its text, and a picture of its graph while that is lazy."""
        return observer.html_of(self)

    def __repr__(self) -> str:
        """Device, dtype and shape, and the values where they are known; printing never computes."""
        values = reading.known_values(self)
        text = "lazy" if values is None else np.array2string(values, threshold=8, edgeitems=2, separator=", ")
        return f"<Tensor {self.device} {self.dtype.name} {self.shape} {text}>"

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    # --- computing ------------------------------------------------------------------------------------------

    def realize(self, *others: Tensor) -> Tensor:
        """Compute this tensor (and `others`, in one schedule), and return this tensor.

        Inside a function under `vmap`, where values are not known yet, this asks for nothing.
        """
        with engine_lock:
            LOOKS.count()
            calls = [node for t in (self, *others) if (node := call_alone(t._uop)) is not None]
            if len(calls) > len(others) and Capture.active is None:
                realize_uops(with_results_of_calls(calls), notes_of([self, *others], ()))
                return self
            tensors = [t for t in (self, *others) if not is_unknown(t._result)]
            flags = flags_of(tensors)
            by_calls = bool(flags & APPLIED) and Capture.active is None
            writes: dict[UOp, None] = {}
            if not by_calls:
                flags = self._with_nodes(tensors)
            if flags & WRITES:
                tensors, writes = with_pending_readers(tensors)
                if by_calls and any(map(is_expanded, writes)):  # somebody has the nodes of what is written
                    self._with_nodes(tensors)
                    tensors, writes = with_pending_readers(tensors)
                flags = flags_of(tensors)
            if flags & COSTLY or Capture.active is not None:
                keep_values([t for t in tensors if not t._is_realized])
            lazy: Sequence[UOp] = placed([t for t in tensors if not t._is_realized])
            if by_calls:
                lazy = with_results_of_calls(calls_to_compute(lazy))
            realize_uops(with_writes(lazy, writes) if writes else lazy, notes_of(tensors, writes))
        return self

    @staticmethod
    def _with_nodes(tensors: Sequence[Tensor]) -> int:
        """Let these tensors, and what is computed with them, stand for all nodes of calls. Returns flags."""
        with_nodes(tensors)
        flags = flags_of(tensors)
        if flags & (WRITES | COSTLY):
            unrealized_tensors()
        return flags

    def schedule(self, *others: Tensor) -> list[ScheduleItem]:
        """What `realize` would run, without running it."""
        with engine_lock:
            tensors = [self, *others]
            self._with_nodes(tensors)
            tensors, writes = with_pending_readers(tensors)
            lazy = [t for t in tensors if not t._is_realized]
            return ScheduledSteps(schedule_with_kept(lazy, with_writes(placed(lazy), writes)))

    @property
    def _is_realized(self) -> bool:
        view = storage_view(self._uop)
        return view is not None and (self._uop.device is not None or view.device == self._device)

    @property
    def _shown(self) -> UOp:
        """The node of the whole value that this tensor, and those that it shares it with, are views of."""
        self._expand_nodes()
        shared = self._aliased
        return self.uop if shared is None else shared.base

    @property
    def _aliased(self) -> AliasSet | None:
        """What this tensor is of together with others, None where it is alone."""
        if self._alias_set is not None and len(self._alias_set.tensors) == 1:
            self._alias_set = None
        return self._alias_set

    def _note_realized(self, leaves: LeavesOfTensors) -> None:
        """After the node was computed: stand for its memory, unless gradients may still need the way there,
        or only a part was computed of what others show too."""
        node = self._uop if self._aliased is None else self._aliased.base
        if node.flags & LEAF and not is_leaf(node) and not leaves.are_gone_from(node):
            return
        view = storage_view(node) if own_memory(node) is None else None
        if view is not None:
            self._stand_for(view)

    def _stand_for(self, view: UOp) -> None:
        """Take `view`, in which the value was computed, as this tensor's node and that of those that show it
        too."""
        alias_set = self._aliased
        is_written = below_detaches(self._uop).op is Ops.ASSIGN
        # a value of its own whose items, or some of them, were computed once for several places
        is_shorter = repeats_items(view) and not repeats_items(self._shown)
        if not is_written and (is_shorter or not live.takes(alias_set or self, view.base.storage)):
            view = live.copied_for(alias_set or self, view)
        if is_cut_off(self._uop):
            view = view.detach()
        if alias_set is None:
            self.uop = view
        else:
            alias_set.stand_for(view)

    def compute_whole(self) -> None:
        """Compute the value into memory that can be written to, with what others show of it."""
        (self if self._aliased is None else self._whole_value()).realize()

    def _whole_value(self) -> Tensor:
        """A tensor for all of what this is a view of."""
        assert self._alias_set is not None
        whole = Tensor.of(self._alias_set.base, self)
        self._alias_set.add(whole)
        return whole

    computed = reading.computed
    _computed_now = reading.computed_now
    numpy = reading.numpy
    tolist = reading.tolist
    item = reading.item
    __float__ = reading.as_float
    __int__ = reading.as_int
    __bool__ = reading.as_bool
    __index__ = reading.as_index

    # --- writing --------------------------------------------------------------------------------------------

    @exclusive
    def assign(self, x: Any) -> Tensor:
        """Take the value of `x`, broadcast to this shape. A realised tensor's memory is overwritten, lazily.

        Lazy tensors that depend on the old value are computed before the write. A Python number is cast to
        this dtype. Raises ValueError where the shape does not broadcast, TypeError where a tensor's dtype
        would lose its kind (floats into integers).
        """
        value = writing.as_written("assign", self.shape, self.dtype, writing.operand_to_write(self, x))
        self.write(value.to(self.device)._result)
        return self

    write = exclusive(writing.write)

    @property
    def is_tracked(self) -> bool:
        """Whether writing into this value's memory would lose something: gradients that flow through it, or
        the way to a value that is not known yet."""
        return writing.is_tracked(self)

    @exclusive
    def replace(self, x: Tensor) -> Tensor:
        """Stand for the same node as `x`, of the same shape, from now on; memory is not touched."""
        if x.shape != self.shape:
            raise ValueError(f"replace takes a tensor of the same shape {self.shape}, got {x.shape}")
        self.uop = x.uop
        self._device = x._device
        return self

    overwrite = writing.overwrite

    def contiguous(self, **kwargs: Any) -> Tensor:
        """The same values in row-major memory of their own."""
        return Tensor.of(self.uop.contiguous(), self)

    def contiguous_backward(self) -> Tensor:
        """The same values. Where gradients are stored is the scheduler's choice, so this asks for nothing."""
        return Tensor.view_of(self.uop, self)

    def detach(self) -> Tensor:
        """The same values as a constant to gradients."""
        node = self._result
        is_one = not self.dtype.is_float or (is_cut_off(node) and self._is_in_memory)
        result = Tensor.view_of(node if is_one else node.detach(), self)
        result._requires_grad = False
        return result

    def clone(self, device: Devices | None = None) -> Tensor:
        """A copy in memory of its own."""
        moved = self.uop if device is None else self.uop.copy_to(canonical_device(device))
        return Tensor.of(UOp.new(Ops.CONTIGUOUS, self.dtype, (moved,)), self)

    def _invalidate(self) -> None:
        """Give the value up: a gradient nobody asked for, when what it depends on is overwritten."""
        self._given_up = True
        whole = largest_shape(self.shape)
        memory = UOp.new_buffer(self.device, prod(whole), self.dtype).reshape(whole)
        self.uop = memory.shrink([(0, size) for size in self.shape])


def _with_values(array: np.ndarray[Any, Any], device: Placement, dtype: DTypeLike, requires_grad: bool | None,
                 cuts: tuple[Cut, ...]) -> Tensor:
    """A tensor of its own memory; on several devices cut as `cuts` say."""
    result = Tensor(array, device if isinstance(device, str) else device[0], dtype, requires_grad)
    if not isinstance(device, str):
        result.uop, result._device = result.uop.shard(Sharding(device, cuts=cuts)), device
        if requires_grad is not False:
            result._become_leaf()
    return result


def _integers_within(low: int, high: int) -> DType:
    """The type of sizes within these bounds as values: the default integer, or int64 where not all fit."""
    kind = dtypes.default_int
    return kind if kind.min <= low and high <= kind.max else dtypes.int64
