"""The operations, by family. The tensor graph uses only those above "loop nest".

There is no operation for matrix product, convolution, softmax, attention or gather: they are built of these.
"""
from __future__ import annotations

from enum import Enum, auto

from tinygrad.helpers import quick


@quick
class Ops(Enum):
    """What a `UOp` does. `graph/spec.py` says which are legal at which stage, with what sources and
    argument."""

    __hash__ = object.__hash__
    """by identity: the hash of Enum, by name, shows in profiles of graph building"""

    # sources
    BUFFER = auto()
    """memory on a device; arg: `BufferSpec`"""
    CONST = auto()
    """a number; arg: the number"""
    VARIABLE = auto()
    """a bound symbolic integer; arg: (name, lowest, highest, value or None)"""
    COPY = auto()
    """the source moved to another device; arg: the device"""

    # elementwise, one source
    NEG = auto()
    SQRT = auto()
    EXP2 = auto()
    LOG2 = auto()
    SIN = auto()
    TRUNC = auto()
    CAST = auto()
    BITCAST = auto()

    # elementwise, two sources
    ADD = auto()
    SUB = auto()
    MUL = auto()
    FDIV = auto()
    """floating-point division, rounded once"""
    IDIV = auto()
    """integer division, rounded toward minus infinity (Python's //)"""
    MOD = auto()
    """integer remainder with the divisor's sign (Python's %)"""
    MAX = auto()
    CMPLT = auto()
    CMPNE = auto()
    AND = auto()
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()

    # elementwise, three sources
    WHERE = auto()
    """condition, value where true, value where false"""
    MULACC = auto()
    """a * b + c, rounded once"""

    # elementwise, four sources
    THREEFRY = auto()
    """random bits: a word of what the block cipher threefry2x32 makes of a block number under a key, both two
    words, low word first; arg: which word, 0 or 1"""

    DP4A = auto()
    """words a and b, and c: the sum of c and of four products, of the bytes of a, which have no sign, with
    those of b, which have one. Not in the tensor graph"""

    LOOKUP = auto()
    """a word whose bytes are places in a table, 0 to 15; arg: its 16 bytes, which take their places. Not in
    the tensor graph"""

    # reduce
    REDUCE = auto()
    """tensor graph: arg (op, axes), the axes stay with size 1. Loop nest: value and the ranges it closes; arg
    op. With arg MULACC the first value is a factor: each iteration multiplies by it what was accumulated, and
    adds the others"""

    # movement
    RESHAPE = auto()
    PERMUTE = auto()
    EXPAND = auto()
    PAD = auto()
    """zeros around; arg: ((before, after), ...)"""
    SHRINK = auto()
    """arg: ((start, end), ...). With more sources, an int for each axis, its box is moved by these"""
    STRIDE = auto()
    """every nth item; negative steps run backwards; arg: (step, ...)"""

    # graph control
    CONTIGUOUS = auto()
    """this value becomes a buffer of its own; arg: None, or a `Visibility`"""
    ASSIGN = auto()
    """(a view of a buffer, the value that its memory takes)"""
    DETACH = auto()
    """the same value; gradients stop here. arg: None, or the identity of a leaf tensor"""
    CUSTOM_GRADIENT = auto()
    """(value, inputs...): the value, with gradients at the inputs that arg, a function, gives; none at the
    value"""
    APPLY = auto()
    """what a graph template makes of its operands, until somebody looks at the nodes of that; arg: the
    `GraphTemplate`. Only in graphs of tensors"""
    SINK = auto()
    """several results at once"""

    # graphs of each device of several (schedule/partition.py)
    COLLECTIVE = auto()
    """what each of several devices has, combined, or joined along the first axis, as one of them gets it;
    arg: (that device, ADD or MUL or MAX, or None)"""

    # graphs over the largest sizes (schedule/padded_shapes.py)
    LIVE_OUT = auto()
    """(value, condition): the value where the condition holds, elsewhere whatever costs least: what stores it
    writes nothing there."""

    # loop nest
    PARAM = auto()
    """a kernel's buffer argument; arg: (slot, number of items)"""
    RANGE = auto()
    """a loop, as the value of its counter; source: the extent; arg: (identity, RangeKind). With sources begin
    and end, it runs over [begin, end) of [0, extent) only"""
    INDEX = auto()
    """an address: memory, offset in items, and (optional) the condition under which it may be touched"""
    LOAD = auto()
    """the value at an INDEX; zero where its condition is false. Or the value of a REGISTER. arg of the
    former: None, or how many items further on memory is asked for too, for a LOAD to come"""
    STORE = auto()
    """INDEX, value, and in the loop nest the ranges it closes"""
    RUNNING = auto()
    """(value, RANGE): what a REDUCE of the same sources and arg has accumulated when an iteration begins"""
    STAGE = auto()
    """memory filled by computing a value (or several side by side) over ranges: values and ranges; arg:
    (identity, Memory), and, where the values were copies of a range around the last loops, how many of these
    run inside that range"""
    SCATTER = auto()
    """memory in which an operation accumulates: (value, offset, condition, ranges...); each iteration adds
    its value to the item at its offset, where the condition holds. arg: (identity, op, items)"""
    BARRIER = auto()
    """waits until all threads of the block are here; what they wrote into shared memory can be read then"""
    PREFETCH = auto()
    """starts copying from the second INDEX, of a buffer, to the first, of shared memory; where its condition
    is false, zeros"""
    COMMIT = auto()
    """makes a group of the copies that this thread has started since the last one"""
    WAIT = auto()
    """waits until this thread's copies are done but for those of its last groups; arg: how many"""
    MMA = auto()
    """what a matrix unit adds to the tile that a warp holds; arg: the `MatrixUnit`. Loop nest: elements of
    the two tiles, the LOCAL range across the warp's lanes, the FRAGMENT ranges over what a lane holds of the
    result, the left and the right tile. Program: vectors a, b, and c, to which the product is added, and the
    lane, lidx0"""
    EXCHANGE = auto()
    """the value that another lane of the warp has, whose number differs from this one's in one bit; arg: that
    bit's value"""
    SPECIAL = auto()
    """a hardware index: gidx0, gidx1, ... number the block, lidx0, lidx1, ... the thread in it; arg: (name,
    size)"""

    # program only
    LDEXP = auto()
    """a * 2**b, rounded once: b is a whole float, or NaN where a is. For 1/2 <= a <= 2 and sizes of b below
    twice the exponent's bias"""
    CALL = auto()
    """what a function of one value, written down once, makes of its source; arg: the `CalledFunction`"""
    REGISTER = auto()
    """a variable of the program; arg: identity"""
    SCRATCH = auto()
    """memory private to a thread; arg: (identity, number of items)"""
    SHARED = auto()
    """memory that the threads of a block share; arg: (identity, number of items)"""
    END = auto()
    """closes the loop of its source RANGE"""
    VECTORIZE = auto()
    """a vector from one source (in every lane) or from one source a lane"""
    SHUFFLE = auto()
    """lanes picked from two vectors; arg: for each lane its place in the first, or (from their count on) the
    second"""
    EXTRACT = auto()
    """one lane of a vector; arg: the lane"""


class Family:
    """Groups of operations that rules and tables speak about."""

    UNARY = frozenset({
        Ops.NEG, Ops.SQRT, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TRUNC, Ops.CAST, Ops.BITCAST, Ops.LOOKUP,
    })
    COMPARE = frozenset({Ops.CMPLT, Ops.CMPNE})
    BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR})
    BINARY = COMPARE | BITWISE | {
        Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.IDIV, Ops.MOD, Ops.MAX, Ops.LDEXP,
    }
    TERNARY = frozenset({Ops.WHERE, Ops.MULACC, Ops.DP4A})
    ELEMENTWISE = UNARY | BINARY | TERNARY | {Ops.THREEFRY}
    VIEW = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.SHRINK, Ops.STRIDE})
    """what shows items of its source and nothing else, so that it may share their memory"""
    MOVEMENT = VIEW | {Ops.PAD}
    COMMUTATIVE = frozenset({Ops.ADD, Ops.MUL, Ops.MAX, Ops.CMPNE, Ops.AND, Ops.OR, Ops.XOR})
    FLOAT_ONLY = frozenset({Ops.SQRT, Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TRUNC, Ops.FDIV, Ops.LDEXP})
    INT_ONLY = frozenset({Ops.IDIV, Ops.MOD, Ops.SHL, Ops.SHR})
    TRANSFER = frozenset({Ops.COPY, Ops.COLLECTIVE})
    """what queues do, not kernels"""
    STORED = TRANSFER | {Ops.CONTIGUOUS, Ops.ASSIGN}
    """what has memory of its own once it is computed"""
    ELEMENTARY = frozenset({Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.THREEFRY})
    """functions that are made of a dozen operations and more"""
    REDUCING = frozenset({Ops.ADD, Ops.MAX, Ops.MUL})
    ACCUMULATING = REDUCING | {Ops.MULACC}
    """what a REDUCE of the loop nest does"""


@quick
class Visibility(Enum):
    """Who sees a stored value beside the schedule that computes it, where that is not everybody, in row-major
    order."""

    ANY_ORDER = auto()
    """everybody, its axes in the order that the scheduler thinks best (`schedule/layout.py`)"""
    INTERMEDIATE = auto()
    """nobody: what all have read that read it gives its memory to others"""


@quick
class RangeKind(Enum):
    """How a loop runs. A Plan changes kinds; the result never depends on them."""

    __hash__ = object.__hash__
    """by identity, as that of `Ops`"""

    LOOP = auto()
    """one iteration after another"""
    IN_ORDER = auto()
    """one iteration after another, each beginning with what the one before left: no Plan takes it apart"""
    THREAD = auto()
    """iterations spread over CPU cores"""
    GLOBAL = auto()
    """iterations spread over GPU blocks"""
    LOCAL = auto()
    """iterations spread over the threads of a GPU block"""
    UNROLL = auto()
    """every iteration written out"""
    VECTOR = auto()
    """iterations side by side in the lanes of a vector"""
    FRAGMENT = auto()
    """the elements of a matrix unit's tile that one lane holds"""


@quick
class Memory(Enum):
    """Where a STAGE keeps its values; GLOBAL on a STORE: past the caches, straight to memory."""

    __hash__ = object.__hash__
    """by identity, as that of `Ops`"""

    REGISTER = auto()
    SCRATCH = auto()
    SHARED = auto()
    GLOBAL = auto()
