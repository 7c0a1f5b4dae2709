"""What threads share out: of a loop that ends at a size which a run says, each gets its share."""
import ctypes

import numpy as np
import pytest
from arrays import drawn

from tinygrad import Tensor
from tinygrad.codegen.compile import compiled_kernel, stages_of
from tinygrad.engine.realize import schedule_uops
from tinygrad.graph.uop import UOp

pytestmark = pytest.mark.usefixtures("on_cpu")
MOST, WIDTH = 256, 4096


def rows_of_halves(rows, function):
    """The rows that each half of the iterations for threads writes, of a function of a matrix's rows."""
    x = Tensor(drawn(MOST, WIDTH).astype(np.float32))
    (item,) = schedule_uops([function(x[:UOp.variable("n", 1, MOST).bind(rows)]).uop])
    kernel = compiled_kernel(item.ast, "CPU")
    out = np.zeros(item.buffers[0].arg.size, np.float32)
    addresses = (ctypes.c_int64 * 2)(out.ctypes.data, item.buffers[1].buffer.address)
    values = (ctypes.c_int64 * 1)(rows)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, pointer, pointer, integer, integer, pointer)(kernel.program.function)
    halves = []
    for begin, end in ((0, kernel.extent // 2), (kernel.extent // 2, kernel.extent)):
        out[:] = np.nan
        call(addresses, values, begin, end, None)
        halves.append(np.flatnonzero(~np.isnan(out.reshape(MOST, -1)).any(1)).tolist())
    return halves


@pytest.mark.parametrize("rows", [1, 2, 7, 24, 255, MOST])
@pytest.mark.parametrize("function", [lambda x: x.sin(), lambda x: x.max(-1)])
def test_each_half_of_the_threads_does_half_of_the_rows_that_there_are(rows, function):
    first, second = rows_of_halves(rows, function)
    assert first + second == list(range(rows))
    assert abs(len(first) - len(second)) <= 1


def test_loops_up_to_a_size_are_not_merged_with_others():
    """Merged, they would run to the most that there can be."""
    x, w = (Tensor(drawn(*shape).astype(np.float32)) for shape in ((MOST, 32), (3, 1, 32)))
    for rows, merged in ((x[:UOp.variable("n", 1, MOST).bind(9)], False), (x, True)):
        (item,) = schedule_uops([(rows.unsqueeze(0) * w).exp().uop])
        plan = str(stages_of(item.ast, "CPU").plan)
        assert ("MERGE" in plan) is merged and "THREAD" in plan
