"""`Tensor`, what the user writes: a mutable handle on one node of an immutable graph.

Every method builds nodes and computes nothing, until a value is asked for (`realize`, `numpy`, `item`). This module
holds the state (node, gradient, device), computing, reading, writing and differentiating. What tensors can do is
in `functional/`, one family a module; the tables in the class bind those functions as methods and are the index of
the interface. Next on the path: `graph/uop.py`, the nodes.

Leaves. A tensor is a leaf where its node is memory (a BUFFER, reshaped at most), memory about to be overwritten
(ASSIGN), or a constructor's expression marked with an identity, DETACH(leaf). `backward` gives `.grad` to the live
leaves in the graph, except those with `requires_grad=False`, and to results that set `requires_grad=True`.
"""
from __future__ import annotations

import builtins
import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from tinygrad.dtype import DType, DTypeLike, dtype_from_numpy, dtypes, to_dtype
from tinygrad.functional import creation, elementwise, indexing, linalg, movement, nn, random, reduce
from tinygrad.graph.gradient import gradients
from tinygrad.graph.ops import Family, Ops
from tinygrad.graph.uop import Shape, UOp
from tinygrad.helpers import prod

if TYPE_CHECKING:
    from tinygrad.device import Buffer
    from tinygrad.schedule.items import ScheduleItem

Number: TypeAlias = builtins.bool | builtins.int | builtins.float
Operand: TypeAlias = "Tensor | Number | np.ndarray[Any, Any] | np.generic"

_leaf_identities = itertools.count()
_live: weakref.WeakValueDictionary[builtins.int, Tensor] = weakref.WeakValueDictionary()
"""Every tensor that exists, by id."""


class no_grad(contextlib.ContextDecorator):  # noqa: N801 - the public name, as in PyTorch
    """Within this block (or decorated function), results are constants to gradients."""

    depth: ClassVar[builtins.int] = 0

    def __enter__(self) -> None:
        no_grad.depth += 1

    def __exit__(self, *exc: object) -> None:
        no_grad.depth -= 1


class train(contextlib.ContextDecorator):  # noqa: N801 - the public name
    """Within this block (or decorated function), `Tensor.training` is `mode`: dropout and batch statistics on."""

    def __init__(self, mode: builtins.bool = True) -> None:
        self.mode = mode
        self.saved: list[builtins.bool] = []

    def __enter__(self) -> None:
        self.saved.append(Tensor.training)
        Tensor.training = self.mode

    def __exit__(self, *exc: object) -> None:
        Tensor.training = self.saved.pop()


def test() -> train:
    """A block in which `Tensor.training` is False."""
    return train(False)


def canonical_device(device: str | None) -> str:
    """The device's full name, the default device for None. Raises ValueError for names that do not exist."""
    from tinygrad.device import Device

    return Device.DEFAULT if device is None else Device.canonicalize(device)


class Tensor:
    """An n-dimensional array of one dtype, on one device, computed lazily and differentiable.

    `data` is a number, a (nested) list or tuple of them, a NumPy array or scalar (shared without a copy where it is
    C-contiguous and the dtype stays), bytes (as uint8), a memoryview, a graph node, another Tensor, or None (empty).
    Raises ValueError for ragged lists and unknown devices, TypeError for data or dtypes that no tensor can hold.

    >>> (Tensor([[1, 2], [3, 4]]) @ Tensor([1, 1])).tolist()
    [3, 7]
    """

    training: ClassVar[builtins.bool] = False
    """Whether layers behave as in training; also `with Tensor.train():`."""
    no_grad = no_grad
    train = train
    test = staticmethod(test)
    __array_priority__ = 1000

    uop: UOp
    """The graph node of this tensor's value."""

    def __init__(self, data: Any = None, device: str | None = None, dtype: DTypeLike | None = None,
                 requires_grad: builtins.bool | None = None) -> None:
        kind = None if dtype is None else to_dtype(dtype)
        place = canonical_device(device)
        if isinstance(data, Tensor):
            uop = data.uop
            place = data.device if device is None else place
        elif isinstance(data, UOp):
            uop = data.cast(dtypes.default_int) if data.dtype is dtypes.index else data
            place = (data.device or place) if device is None else place
        elif isinstance(data, (builtins.bool, builtins.int, builtins.float)):
            uop = UOp.const(data, dtypes.from_py(data) if kind is None else kind)
        elif isinstance(data, np.generic):
            uop = UOp.const(data.item(), dtype_from_numpy(data.dtype) if kind is None else kind)
        else:
            uop = _memory_of(_array_of(data, kind))
        uop = uop if kind is None else uop.cast(kind)
        uop = uop if uop.device is None else uop.copy_to(place)
        self._init(uop, place, None)
        if requires_grad or (requires_grad is None and not isinstance(data, (Tensor, UOp))):
            self._become_leaf(builtins.bool(requires_grad))
        self._requires_grad = requires_grad

    def _init(self, uop: UOp, device: str, requires_grad: builtins.bool | None) -> None:
        self.uop = uop
        self._device = device
        self._requires_grad = requires_grad
        self._grad: Tensor | None = None
        self._expires = False
        _live[id(self)] = self

    @staticmethod
    def of(uop: UOp, *operands: Tensor) -> Tensor:
        """The result of an operation: a tensor on the operands' device, a constant under `no_grad`."""
        if no_grad.depth and depends_on_leaf(uop):
            uop = uop.detach()
        result = object.__new__(Tensor)
        device = uop.device
        if device is None:
            device = operands[0]._device if operands else canonical_device(None)
        result._init(uop, device, None)
        return result

    @staticmethod
    def leaf(uop: UOp, device: str | None = None, requires_grad: builtins.bool | None = None) -> Tensor:
        """A constructor's result: `uop` as a tensor of its own, which `backward` gives a gradient if it is a float."""
        result = object.__new__(Tensor)
        result._init(uop, canonical_device(uop.device if device is None else device), None)
        if requires_grad is not False:
            result._become_leaf(builtins.bool(requires_grad))
        result._requires_grad = requires_grad
        return result

    def _become_leaf(self, must: builtins.bool) -> None:
        """Make the node a gradient target of its own. With `must`, raises TypeError where gradients cannot be."""
        if not self.dtype.is_float:
            if must:
                raise TypeError(f"requires_grad takes a float tensor, got {self.dtype}; cast it first")
        elif not is_leaf(self.uop):
            self.uop = self.uop.detach(next(_leaf_identities))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.numpy(), self.device, self.dtype.name, self._requires_grad)

    # --- what it is --------------------------------------------------------------------------------------------

    @property
    def lazydata(self) -> UOp:
        """The graph node, under its older name."""
        return self.uop

    @property
    def shape(self) -> Shape:
        return self.uop.shape

    @property
    def dtype(self) -> DType:
        return self.uop.dtype

    @property
    def ndim(self) -> builtins.int:
        return len(self.uop.shape)

    @property
    def device(self) -> str:
        """The name of the device that holds or will compute the value."""
        return self.uop.device or self._device

    @property
    def T(self) -> Tensor:  # noqa: N802 - the public name
        """The last two axes swapped (all axes reversed, for up to two)."""
        return self.transpose(-1, -2) if self.ndim > 1 else self

    @property
    def requires_grad(self) -> builtins.bool | None:
        """True: `backward` gives `.grad`. False: never. None: it does for leaves."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: builtins.bool | None) -> None:
        if value and not depends_on_leaf(self.uop):
            self._become_leaf(True)
        self._requires_grad = value

    def requires_grad_(self, requires_grad: builtins.bool | None = True) -> Tensor:
        """Set `requires_grad`, and return this tensor."""
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward` left. Raises RuntimeError where it can no longer be computed: a leaf that
        does not say `requires_grad=True` keeps its gradient lazy, until what it depends on is overwritten."""
        if self._grad is not None and self._grad._expired:
            raise RuntimeError("this gradient was not computed before the tensors it depends on were overwritten; "
                               "set requires_grad=True to have it kept, or read it before that")
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and value.shape != self.shape:
            raise ValueError(f"a gradient of shape {value.shape} does not fit a tensor of shape {self.shape}")
        self._grad = value

    def __repr__(self) -> str:
        """Device, dtype and shape, and the values where they are known; printing never computes."""
        values = self._known_values()
        text = "lazy" if values is None else np.array2string(values, threshold=8, edgeitems=2, separator=", ")
        return f"<Tensor {self.device} {self.dtype.name} {self.shape} {text}>"

    def _known_values(self) -> np.ndarray[Any, Any] | None:
        constant = _constant_value(self.uop)
        if constant is not None:
            return np.full(self.shape, constant, self.dtype.numpy)
        view = storage_view(self.uop)
        if view is None or view.base.buffer is None or not view.base.buffer.is_allocated:
            return None
        if view.contiguous() is not view:
            return None
        return view.base.buffer.numpy().reshape(self.shape)

    def __hash__(self) -> builtins.int:
        return id(self)

    def __len__(self) -> builtins.int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    # --- computing ---------------------------------------------------------------------------------------------

    def realize(self, *others: Tensor) -> Tensor:
        """Compute this tensor (and `others`, in one schedule), and return this tensor."""
        from tinygrad.engine.realize import realize_uops

        tensors = _with_pending_readers([self, *others])
        realize_uops([t._placed() for t in tensors if not t._is_realized])
        for t in tensors:
            t._settle()
        return self

    def schedule(self, *others: Tensor) -> list[ScheduleItem]:
        """What `realize` would run, without running it."""
        from tinygrad.engine.realize import schedule_uops

        return schedule_uops([t._placed() for t in _with_pending_readers([self, *others]) if not t._is_realized])

    @property
    def _is_realized(self) -> builtins.bool:
        return storage_view(self.uop) is not None

    def _placed(self) -> UOp:
        """The node to compute; where only constants feed it, it says which device is to hold the result."""
        if self.uop.device is None and self._device != canonical_device(None):
            self.uop = self.uop.copy_to(self._device)
        return self.uop

    def _settle(self) -> None:
        """After the node was computed: stand for its memory, unless gradients may still need the way there."""
        view = self.uop.realized_view
        if view is not None and (is_leaf(self.uop) or not depends_on_leaf(self.uop)):
            self.uop = view

    def _memory(self) -> Buffer:
        """The memory of the value in row-major order, all of it and nothing else."""
        self.realize()
        view = storage_view(self.uop)
        if view is None:
            raise RuntimeError(f"{self!r} was computed but has no memory")
        if view.contiguous() is not view:
            view = Tensor.of(view.contiguous()).realize().uop
        buffer = view.base.buffer
        if buffer is None:
            raise RuntimeError(f"{self!r} was computed but has no memory")
        return buffer

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a new NumPy array (bfloat16 and fp8 as ml_dtypes' types)."""
        constant = _constant_value(self.uop)
        if constant is not None or prod(self.shape) == 0:
            return np.full(self.shape, 0 if constant is None else constant, self.dtype.numpy)
        return np.array(self._memory().numpy()).reshape(self.shape)

    def data(self) -> memoryview:
        """The values as a memoryview of this tensor's shape."""
        return memoryview(self.numpy())

    def tolist(self) -> Any:
        """The values as (nested) lists of Python numbers; a single number for a 0-d tensor."""
        return self.numpy().tolist()

    def item(self) -> Any:
        """The value of a tensor of one item, as a Python number."""
        if prod(self.shape) != 1:
            raise RuntimeError(f"item() takes a tensor of one item, this one has shape {self.shape}")
        return self.numpy().reshape(()).item()

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> np.ndarray[Any, Any]:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.numpy().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return np.zeros(0).__dlpack_device__()

    def __float__(self) -> builtins.float:
        return builtins.float(self.item())

    def __int__(self) -> builtins.int:
        return builtins.int(self.item())

    def __bool__(self) -> builtins.bool:
        if prod(self.shape) != 1:
            raise RuntimeError(f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or .all()")
        return builtins.bool(self.item())

    def __index__(self) -> builtins.int:
        if self.dtype.is_float or prod(self.shape) != 1:
            raise TypeError(f"an index is a tensor of one integer, got {self.dtype} of shape {self.shape}")
        return builtins.int(self.item())

    # --- writing -----------------------------------------------------------------------------------------------

    def assign(self, x: Any) -> Tensor:
        """Take the value of `x`, broadcast to this shape. A realised tensor's memory is overwritten, lazily.

        Lazy tensors that depend on the old value are computed before the write. Raises ValueError where the shape
        does not broadcast, TypeError where the dtype would lose its kind (a float into integers).
        """
        value = x if isinstance(x, Tensor) else Tensor(x, self.device, None if _is_array(x) else self.dtype, False)
        value = _as_written(self, value)
        if self.uop.base.op is Ops.ASSIGN:
            self.realize()
        target = storage_view(self.uop)
        if target is None or (not no_grad.depth and not is_leaf(self.uop) and depends_on_leaf(self.uop)):
            self.uop = value.uop.detach(next(_leaf_identities)) if self._is_marked_leaf else value.uop
            return self
        self.uop = target.assign(value.uop.detach() if depends_on_leaf(value.uop) else value.uop)
        return self

    @property
    def _is_marked_leaf(self) -> builtins.bool:
        """Whether a lazy new value must stay a gradient target: a leaf that says `requires_grad=True`."""
        return builtins.bool(self._requires_grad) and is_leaf(self.uop)

    def replace(self, x: Tensor) -> Tensor:
        """Stand for the same node as `x`, of the same shape, from now on; memory is not touched."""
        if x.shape != self.shape:
            raise ValueError(f"replace takes a tensor of the same shape {self.shape}, got {x.shape}")
        self.uop = x.uop
        self._device = x._device
        return self

    def _overwrite(self, view: UOp, value: UOp) -> None:
        """Write `value` into `view`, part of this tensor's memory, now."""
        write = Tensor.of(view.assign(value.detach()))
        write.realize()

    def contiguous(self, **kwargs: Any) -> Tensor:
        """The same values in row-major memory of their own."""
        return Tensor.of(self.uop.contiguous(), self)

    def detach(self) -> Tensor:
        """The same values as a constant to gradients."""
        result = Tensor.of(self.uop if not depends_on_leaf(self.uop) else self.uop.detach(), self)
        result._requires_grad = False
        return result

    def clone(self, device: str | None = None) -> Tensor:
        """A copy in memory of its own."""
        moved = self.uop if device is None else self.uop.copy_to(canonical_device(device))
        return Tensor.of(UOp.new(Ops.CONTIGUOUS, self.dtype, (moved,)), self)

    def to(self, device: str | None) -> Tensor:
        """This tensor on another device."""
        place = canonical_device(device)
        if place == self.device:
            return self
        result = Tensor.of(self.uop if self.uop.device is None else self.uop.copy_to(place), self)
        result._device = place
        result._requires_grad = self._requires_grad
        return result

    def to_(self, device: str | None) -> Tensor:
        """Move this tensor (and its gradient) to another device, and return it."""
        moved = self.to(device)
        if moved is not self:
            self.uop = moved.uop
            self._device = moved._device
            if self._requires_grad:
                self._become_leaf(True)
        if self._grad is not None:
            self._grad.to_(device)
        return self

    # --- gradients ---------------------------------------------------------------------------------------------

    def gradient(self, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
        """The gradients of this tensor at `targets`, weighted by `gradient` (needed unless this is one number).

        They are differentiable themselves. Raises RuntimeError for a target that this tensor does not depend on.

        >>> x = Tensor(3.0)
        >>> (x * x).gradient(x)[0].item()
        6.0
        """
        weight = self._root_gradient(gradient)
        nodes = [_target_nodes(t, self.uop) for t in targets]
        found = gradients(self.uop, weight, [node for group in nodes for node in group])
        by_node = dict(zip((node for group in nodes for node in group), found, strict=True))
        results = []
        for i, (target, group) in enumerate(zip(targets, nodes, strict=True)):
            parts = [g.reshape(target.shape) for g in map(by_node.get, group) if g is not None]
            if not parts:
                raise RuntimeError(f"target {i}, of shape {target.shape}, is not in the graph of this tensor")
            results.append(Tensor.of(_sum(parts), target))
        return results

    def backward(self, gradient: Tensor | None = None) -> Tensor:
        """Add the gradient of this tensor to `.grad` of every live leaf it depends on, and return this tensor.

        Raises RuntimeError for a tensor of more than one item without `gradient`, and for one without leaves.
        """
        weight = self._root_gradient(gradient)
        groups: list[tuple[Tensor, list[UOp]]] = []
        graph = self.uop.toposort(stop=lambda node: node.op is Ops.DETACH and node.arg is None)
        for tensor in list(_live.values()):
            wanted = tensor._requires_grad or (tensor._requires_grad is None and is_leaf(tensor.uop))
            if wanted and tensor.dtype.is_float and (nodes := _target_nodes(tensor, self.uop, graph)):
                groups.append((tensor, nodes))
        targets = list(dict.fromkeys(node for _, nodes in groups for node in nodes))
        found = dict(zip(targets, gradients(self.uop, weight, targets), strict=True))
        reached = False
        for tensor, nodes in groups:
            parts = [g.reshape(tensor.shape) for g in map(found.get, nodes) if g is not None]
            if parts:
                reached = True
                tensor._accumulate(_sum(parts))
        if not reached:
            raise RuntimeError(f"backward() of {self.dtype} of shape {self.shape}: no live float tensor that this "
                               "one depends on takes gradients (see requires_grad, no_grad and detach)")
        return self

    def _root_gradient(self, gradient: Tensor | None) -> UOp:
        if not self.dtype.is_float:
            raise RuntimeError(f"only floats have gradients, this tensor is {self.dtype}")
        if gradient is None:
            if prod(self.shape) != 1:
                raise RuntimeError(f"backward() of shape {self.shape} needs a gradient of that shape; "
                                   "only a tensor of one item does without")
            return UOp.const(1.0, self.dtype, self.shape)
        if gradient.shape != self.shape:
            raise RuntimeError(f"the gradient has shape {gradient.shape}, the tensor {self.shape}")
        return gradient.uop.cast(self.dtype)

    def _accumulate(self, uop: UOp) -> None:
        """Add `uop` to `.grad`. A lazy old gradient is computed first, so that the graph does not grow."""
        if self._grad is not None:
            if self._grad._expired:
                return
            self._grad.realize()
            uop = self._grad.uop + uop
        self._grad = Tensor.of(uop.detach(), self)
        self._grad._requires_grad = False
        self._grad._expires = self._requires_grad is None

    @property
    def _expired(self) -> builtins.bool:
        """Whether the value was given up: a gradient nobody asked for, when what it depends on was overwritten."""
        return self._expires and self.uop.op is Ops.BUFFER and self.uop.buffer is None

    def _expire(self) -> None:
        self.uop = UOp.new_buffer(self.device, prod(self.shape), self.dtype)

    # --- the methods that functional/ defines, by family ---------------------------------------------------------

@@TABLE@@
    # --- operators -----------------------------------------------------------------------------------------------

@@OPERATORS@@

# --- data from Python --------------------------------------------------------------------------------------------


def _is_array(data: Any) -> builtins.bool:
    return isinstance(data, (np.ndarray, np.generic))


def _array_of(data: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """The C-contiguous NumPy array of the data that a constructor was given, of `dtype` if that is given."""
    if data is None:
        array = np.empty((0,), (dtypes.default_float if dtype is None else dtype).numpy)
    elif isinstance(data, (list, tuple)):
        array = _array_of_list(data, dtype)
    elif isinstance(data, (bytes, bytearray)):
        array = np.frombuffer(data, np.uint8)
    elif isinstance(data, (np.ndarray, memoryview)) or hasattr(data, "__array__"):
        array = np.asarray(data)
    else:
        raise TypeError(f"no tensor from a {type(data).__name__}; give a number, a list of numbers, a NumPy array, "
                        "bytes or a Tensor")
    wanted = dtype_from_numpy(array.dtype.newbyteorder("=")) if dtype is None else dtype
    if array.dtype != wanted.numpy:
        array = array.astype(wanted.numpy)
    return np.ascontiguousarray(array).reshape(array.shape)


def _array_of_list(data: Sequence[Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    if any(isinstance(item, (Tensor, np.ndarray)) for item in data):
        items = [item.numpy() if isinstance(item, Tensor) else item for item in data]
        if len({item.shape if isinstance(item, np.ndarray) else () for item in items}) > 1:
            raise ValueError(f"a list of arrays takes equal shapes, got {[np.shape(item) for item in items]}")
        return np.stack(items)
    shape = _list_shape(data)
    flat: Any = data
    for _ in shape[1:]:
        flat = [item for row in flat for item in row]
    flat = [item.item() if isinstance(item, np.generic) else item for item in flat]
    wanted = dtypes.from_py(flat) if dtype is None else dtype
    # ml_dtypes and integer types refuse some Python numbers that a cast takes
    array = np.array(flat, wanted.numpy if wanted.numpy.kind in "bf" else None)
    if wanted.is_int and not flat:
        array = array.astype(wanted.numpy)
    return array.astype(wanted.numpy, copy=False).reshape(shape)


def _list_shape(data: Any) -> Shape:
    """The shape of nested lists. Raises ValueError where rows differ."""
    if not isinstance(data, (list, tuple)):
        return ()
    shapes = {_list_shape(item) for item in data}
    if len(shapes) > 1:
        raise ValueError(f"a tensor takes rows of equal shape, got a list with items of shapes "
                         f"{', '.join(map(str, sorted(shapes)))}")
    return (len(data), *(shapes.pop() if shapes else ()))


def _memory_of(array: np.ndarray[Any, Any]) -> UOp:
    """A node over the memory of `array`, on the CPU."""
    from tinygrad.device import Buffer

    buffer = Buffer.from_numpy(array.reshape(-1))
    node = UOp.new_buffer(buffer.device, array.size, dtype_from_numpy(array.dtype))
    node.set_buffer(buffer)
    return node.reshape(array.shape)


def _unpickled(array: np.ndarray[Any, Any], device: str, dtype: str, requires_grad: builtins.bool | None) -> Tensor:
    return Tensor(array, device, dtype, requires_grad)


# --- what a node says about its tensor ---------------------------------------------------------------------------


def storage_view(uop: UOp) -> UOp | None:
    """`uop` as movement ops over a BUFFER, if its value is in memory; None while it is lazy."""
    if uop.realized_view is not None:
        return uop.realized_view
    base = uop.base
    if base.op is Ops.BUFFER:
        return uop
    return None if base.realized_view is None else uop.substitute({base: base.realized_view})


def leaf_node(uop: UOp) -> UOp | None:
    """The node that a leaf's gradient belongs to: the BUFFER, ASSIGN or DETACH(leaf) under its reshapes, or None."""
    node = uop.src[0] if uop.op is Ops.RESHAPE else uop
    if node.op in (Ops.BUFFER, Ops.ASSIGN) or (node.op is Ops.DETACH and node.arg is not None):
        return node
    return None


def is_leaf(uop: UOp) -> builtins.bool:
    return leaf_node(uop) is not None


def depends_on_leaf(uop: UOp) -> builtins.bool:
    """Whether a float BUFFER or DETACH(leaf) is below, along ways that gradients can take."""
    for node in uop.toposort(stop=lambda n: "_has_leaf" in n.__dict__ or n.op is Ops.DETACH):
        if "_has_leaf" not in node.__dict__:
            node.__dict__["_has_leaf"] = _depends_on_leaf_here(node)
    return builtins.bool(uop.__dict__["_has_leaf"])


def _depends_on_leaf_here(node: UOp) -> builtins.bool:
    if not node.dtype.is_float:
        return False
    if node.op is Ops.DETACH:
        return node.arg is not None
    return node.op is Ops.BUFFER or any(s.__dict__["_has_leaf"] for s in node.src)


def _target_nodes(tensor: Tensor, root: UOp, graph: dict[UOp, None] | None = None) -> list[UOp]:
    """The nodes in the graph of `root` whose gradient is that of `tensor`.

    A leaf that was computed or overwritten since stands for its memory, while `root` may still hold the node that
    it was: DETACH(leaf) or ASSIGN, computed into the same memory.
    """
    graph = root.toposort() if graph is None else graph
    node = leaf_node(tensor.uop)
    if node is None:
        return [tensor.uop] if tensor.uop in graph else []
    found = [node] if node in graph else []
    if node.op is Ops.BUFFER:
        for other in _computed_leaves(graph).get(node, ()):
            found.append(other)
    return found


def _computed_leaves(graph: dict[UOp, None]) -> dict[UOp, list[UOp]]:
    """The DETACH(leaf) and ASSIGN nodes of a graph that were computed, by the BUFFER that holds their value."""
    found: dict[UOp, list[UOp]] = {}
    for node in graph:
        if (node.op is Ops.ASSIGN or (node.op is Ops.DETACH and node.arg is not None)) and node.realized_view:
            found.setdefault(node.realized_view.base, []).append(node)
    return found
