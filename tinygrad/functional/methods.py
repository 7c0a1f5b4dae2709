"""`Methods`, the index of what tensors can do: each function of `functional/` under its name as a method.

`Tensor` inherits it. A line here is all that a function needs to become a method, an operator or (static) a
constructor; the types are the functions' own. Those of many nodes are `memoised` (`graph_templates.py`).
Linear algebra and Fourier transforms are in `numerical_methods.py`, what overwrites in `in_place.py`.
"""
from __future__ import annotations

from tinygrad.compat import tensors as compat
from tinygrad.functional import (
    activation,
    arrangements,
    casts,
    comparisons,
    convolution,
    creation,
    differentiation,
    divisors,
    elementwise,
    error_function,
    gamma_functions,
    indexing,
    interop,
    joining,
    losses,
    mathematics,
    movement,
    nn,
    placement,
    pooling,
    properties,
    pytorch_names,
    random,
    rearrange,
    reduce,
    running,
    selecting,
    sorting,
    statistics,
)
from tinygrad.functional.method_kinds import (
    also_named,
    in_place,
    memoised,
    of_tensors,
    operator,
    reflected,
    sized,
    with_axes_by_both_names,
)
from tinygrad.functional.numerical_methods import NumericalMethods
from tinygrad.tensor import generator

_to_end = also_named(end="stop")
_with_other = also_named(other="x")
_spread = also_named(unbiased="correction")


@with_axes_by_both_names
class Methods(NumericalMethods):
    """The methods that `functional/` defines, by family, and the operators."""

    # creation
    zeros = staticmethod(sized(creation.zeros))
    ones = staticmethod(sized(creation.ones))
    full = staticmethod(also_named(size="shape")(creation.full))
    empty = staticmethod(sized(creation.empty))
    arange = staticmethod(_to_end(creation.arange))
    linspace = staticmethod(_to_end(creation.linspace))
    logspace = staticmethod(_to_end(creation.logspace))
    tril_indices = staticmethod(creation.tril_indices)
    triu_indices = staticmethod(creation.triu_indices)
    eye = staticmethod(creation.eye)
    from_file = staticmethod(creation.from_file)
    from_url = staticmethod(creation.from_url)
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like
    full_like = creation.full_like
    empty_like = creation.empty_like
    one_hot = creation.one_hot
    # random
    manual_seed = staticmethod(generator.manual_seed)
    rand = staticmethod(sized(random.rand))
    randn = staticmethod(sized(random.randn))
    uniform = staticmethod(random.uniform)
    normal = staticmethod(random.normal)
    randint = staticmethod(random.randint)
    randperm = staticmethod(random.randperm)
    scaled_uniform = staticmethod(random.scaled_uniform)
    glorot_uniform = staticmethod(random.glorot_uniform)
    kaiming_uniform = staticmethod(random.kaiming_uniform)
    kaiming_normal = staticmethod(random.kaiming_normal)
    rand_like = random.rand_like
    randn_like = random.randn_like
    multinomial = random.multinomial
    # elementwise: arithmetic
    add = _with_other(elementwise.add)
    sub = _with_other(elementwise.sub)
    mul = _with_other(elementwise.mul)
    div = _with_other(elementwise.div)
    floordiv = _with_other(memoised(elementwise.floordiv))
    mod = _with_other(memoised(elementwise.mod))
    fmod = _with_other(memoised(elementwise.fmod))
    neg = elementwise.neg
    reciprocal = elementwise.reciprocal
    maximum = _with_other(elementwise.maximum)
    minimum = _with_other(elementwise.minimum)
    clip = also_named(min="min_", max="max_")(memoised(elementwise.clip))
    lerp = memoised(elementwise.lerp)
    sign = memoised(elementwise.sign)
    copysign = memoised(elementwise.copysign)
    clamp = clip
    abs = memoised(elementwise.absolute)
    # comparisons and choices
    lt = _with_other(comparisons.lt)
    gt = _with_other(comparisons.gt)
    le = _with_other(comparisons.le)
    ge = _with_other(comparisons.ge)
    eq = _with_other(comparisons.eq)
    ne = _with_other(comparisons.ne)
    logical_not = comparisons.logical_not
    where = memoised(comparisons.where)
    masked_fill = memoised(comparisons.masked_fill)
    isnan = comparisons.isnan
    isinf = memoised(comparisons.isinf)
    isfinite = memoised(comparisons.isfinite)
    isclose = memoised(comparisons.isclose)
    allclose = comparisons.allclose
    # elementwise: bits
    bitwise_and = _with_other(elementwise.bitwise_and)
    bitwise_or = _with_other(elementwise.bitwise_or)
    bitwise_xor = _with_other(elementwise.bitwise_xor)
    bitwise_not = elementwise.bitwise_not
    lshift = _with_other(elementwise.lshift)
    rshift = _with_other(elementwise.rshift)
    # elementwise: rounding
    trunc = elementwise.trunc
    floor = memoised(elementwise.floor)
    ceil = memoised(elementwise.ceil)
    round = memoised(elementwise.round_half_even)
    # mathematics: powers, exponentials, logarithms, trigonometry
    square = mathematics.square
    sqrt = mathematics.sqrt
    rsqrt = memoised(mathematics.rsqrt)
    exp = memoised(mathematics.exp)
    exp2 = mathematics.exp2
    expm1 = memoised(mathematics.expm1)
    log = memoised(mathematics.log)
    log1p = memoised(mathematics.log1p)
    log2 = mathematics.log2
    log10 = memoised(mathematics.log10)
    logaddexp = memoised(mathematics.logaddexp)
    pow = also_named(exponent="x")(memoised(mathematics.power))
    sin = mathematics.sin
    cos = memoised(mathematics.cos)
    tan = memoised(mathematics.tan)
    asin = memoised(mathematics.asin)
    acos = memoised(mathematics.acos)
    atan = memoised(mathematics.atan)
    sinh = memoised(mathematics.sinh)
    cosh = memoised(mathematics.cosh)
    tanh = memoised(mathematics.tanh)
    asinh = memoised(mathematics.asinh)
    acosh = memoised(mathematics.acosh)
    atanh = memoised(mathematics.atanh)
    erf = memoised(error_function.erf)
    erfc = memoised(error_function.erfc)
    erfinv = memoised(error_function.erfinv)
    lgamma = memoised(gamma_functions.lgamma)
    gammaln = lgamma
    digamma = memoised(gamma_functions.digamma)
    psi = digamma
    # activation
    relu = memoised(activation.relu)
    relu6 = memoised(activation.relu6)
    sigmoid = memoised(activation.sigmoid)
    silu = memoised(activation.silu)
    gelu = memoised(activation.gelu)
    quick_gelu = memoised(activation.quick_gelu)
    softplus = memoised(activation.softplus)
    logsigmoid = memoised(activation.logsigmoid)
    mish = memoised(activation.mish)
    elu = memoised(activation.elu)
    celu = memoised(activation.celu)
    selu = memoised(activation.selu)
    leaky_relu = memoised(activation.leaky_relu)
    hardtanh = memoised(activation.hardtanh)
    hardsigmoid = memoised(activation.hardsigmoid)
    hardswish = memoised(activation.hardswish)
    softsign = memoised(activation.softsign)
    swish = silu
    expit = sigmoid
    # elementwise: casts
    cast = casts.cast
    bitcast = casts.bitcast
    is_floating_point = casts.is_floating_point
    bool = casts.to_bool
    int = casts.to_int
    long = casts.to_long
    short = casts.to_short
    float = casts.to_float
    double = casts.to_double
    half = casts.to_half
    bfloat16 = casts.to_bfloat16
    # movement
    reshape = movement.reshape
    flatten = movement.flatten
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    expand = also_named(size="shape")(movement.expand)
    permute = also_named(dims="order")(movement.permute)
    transpose = movement.transpose
    flip = also_named(dims="axis")(movement.flip)
    shrink = movement.shrink
    shrink_to = movement.shrink_to
    pad = memoised(movement.pad)
    pad_to = movement.pad_to
    cat = memoised(joining.cat)
    stack = memoised(joining.stack)
    split = also_named(split_size="sizes", split_size_or_sections="sizes", split_sizes="sizes")(joining.split)
    chunk = joining.chunk
    repeat = memoised(joining.repeat)
    repeat_interleave = joining.repeat_interleave
    roll = memoised(joining.roll)
    meshgrid = of_tensors(joining.meshgrid)
    unfold = also_named(dimension="dim")(movement.unfold)
    diagonal = movement.diagonal
    diag = memoised(movement.diag)
    triu = memoised(movement.triu)
    tril = memoised(movement.tril)
    rearrange = rearrange.rearrange
    numel = movement.numel
    size = movement.size
    element_size = movement.element_size
    nbytes = movement.nbytes
    view = also_named(size="shape")(movement.reshape)
    # reduce
    sum = memoised(reduce.sum_)
    prod = memoised(reduce.prod_)
    max = memoised(reduce.max_)
    min = memoised(reduce.min_)
    any = memoised(reduce.any_)
    all = memoised(reduce.all_)
    mean = memoised(reduce.mean)
    var = _spread(memoised(reduce.var))
    std = _spread(memoised(reduce.std))
    var_mean = _spread(memoised(reduce.var_mean))
    std_mean = _spread(memoised(reduce.std_mean))
    argmax = memoised(reduce.argmax)
    argmin = memoised(reduce.argmin)
    softmax = memoised(reduce.softmax)
    log_softmax = memoised(reduce.log_softmax)
    softmin = memoised(reduce.softmin)
    logsumexp = memoised(reduce.logsumexp)
    cumsum = memoised(running.cumsum)
    cumprod = memoised(running.cumprod)
    cummax = memoised(running.cummax)
    cummin = memoised(running.cummin)
    logcumsumexp = memoised(running.logcumsumexp)
    sort = memoised(sorting.sort)
    argsort = memoised(sorting.argsort)
    topk = also_named(sorted="sorted_")(memoised(sorting.topk))
    # indexing
    gather = memoised(indexing.gather)
    scatter = also_named(value="src")(memoised(indexing.scatter))
    scatter_reduce = memoised(indexing.scatter_reduce)
    masked_select = of_tensors(selecting.masked_select)
    nonzero = selecting.nonzero
    unique = selecting.unique
    # neural networks: convolution, pooling, normalisation, attention, losses
    conv2d = memoised(convolution.conv2d)
    conv_transpose2d = memoised(convolution.conv_transpose2d)
    avg_pool2d = memoised(pooling.avg_pool2d)
    max_pool2d = memoised(pooling.max_pool2d)
    max_unpool2d = of_tensors(pooling.max_unpool2d)
    interpolate = memoised(pooling.interpolate)
    batchnorm = memoised(nn.batchnorm)
    layernorm = memoised(nn.layernorm)
    normalize = memoised(nn.normalize)
    dropout = nn.dropout
    scaled_dot_product_attention = memoised(nn.scaled_dot_product_attention)
    sequential = nn.sequential
    binary_crossentropy = memoised(losses.binary_crossentropy)
    binary_crossentropy_logits = memoised(losses.binary_crossentropy_logits)
    cross_entropy = memoised(losses.cross_entropy)
    sparse_categorical_crossentropy = memoised(losses.sparse_categorical_crossentropy)
    nll_loss = memoised(losses.nll_loss)

    # PyTorch's names: item by item
    addcmul = memoised(pytorch_names.addcmul)
    addcdiv = memoised(pytorch_names.addcdiv)
    atan2 = memoised(mathematics.atan2)
    clamp_min = pytorch_names.clamp_min
    clamp_max = pytorch_names.clamp_max
    nan_to_num = memoised(pytorch_names.nan_to_num)
    logit = memoised(mathematics.logit)
    xlogy = memoised(pytorch_names.xlogy)
    hypot = memoised(mathematics.hypot)
    gcd = memoised(divisors.gcd)
    lcm = memoised(divisors.lcm)
    deg2rad = pytorch_names.deg2rad
    rad2deg = pytorch_names.rad2deg
    frac = pytorch_names.frac
    sinc = memoised(mathematics.sinc)
    heaviside = memoised(pytorch_names.heaviside)
    signbit = memoised(pytorch_names.signbit)
    isposinf = pytorch_names.isposinf
    isneginf = pytorch_names.isneginf
    fmax = memoised(pytorch_names.fmax)
    fmin = memoised(pytorch_names.fmin)
    logical_and = of_tensors(pytorch_names.logical_and)
    logical_or = of_tensors(pytorch_names.logical_or)
    logical_xor = of_tensors(pytorch_names.logical_xor)
    hardshrink = memoised(pytorch_names.hardshrink)
    prelu = memoised(pytorch_names.prelu)
    arctan2 = atan2
    absolute = abs
    negative = neg
    positive = elementwise.positive
    multiply = mul
    subtract = sub
    divide = div
    true_divide = div
    floor_divide = floordiv
    remainder = mod
    fix = trunc
    less = lt
    less_equal = le
    greater = gt
    greater_equal = ge
    not_equal = ne
    arcsin = asin
    arccos = acos
    arctan = atan
    arcsinh = asinh
    arccosh = acosh
    arctanh = atanh
    sgn = sign
    bitwise_left_shift = lshift
    bitwise_right_shift = rshift
    type = casts.cast
    # PyTorch's names: along axes
    amax = memoised(pytorch_names.amax)
    amin = memoised(pytorch_names.amin)
    norm = memoised(pytorch_names.norm)
    dist = memoised(pytorch_names.dist)
    count_nonzero = memoised(pytorch_names.count_nonzero)
    nansum = memoised(pytorch_names.nansum)
    nanmean = memoised(pytorch_names.nanmean)
    median = memoised(pytorch_names.median)
    diff = memoised(pytorch_names.diff)
    trace = pytorch_names.trace
    # order statistics, counts, covariances, distances
    quantile = memoised(statistics.quantile)
    nanquantile = memoised(statistics.nanquantile)
    kthvalue = memoised(statistics.kthvalue)
    nanmedian = memoised(statistics.nanmedian)
    mode = memoised(statistics.mode)
    aminmax = memoised(statistics.aminmax)
    histc = memoised(statistics.histc)
    histogram = statistics.histogram
    searchsorted = memoised(statistics.searchsorted)
    bucketize = memoised(statistics.bucketize)
    isin = memoised(statistics.isin)
    cov = memoised(statistics.cov)
    corrcoef = memoised(statistics.corrcoef)
    cdist = memoised(statistics.cdist)
    logdet = statistics.logdet
    tensordot = memoised(statistics.tensordot)
    tensor_split = statistics.tensor_split
    # PyTorch's names: products
    mm = of_tensors(pytorch_names.mm)
    bmm = of_tensors(pytorch_names.bmm)
    mv = of_tensors(pytorch_names.mv)
    addmm = of_tensors(pytorch_names.addmm)
    baddbmm = of_tensors(pytorch_names.baddbmm)
    outer = memoised(pytorch_names.outer)
    inner = memoised(pytorch_names.inner)
    kron = memoised(pytorch_names.kron)
    ger = outer
    cross = memoised(pytorch_names.cross)
    # PyTorch's names: positions
    select = pytorch_names.select
    narrow = pytorch_names.narrow
    unbind = pytorch_names.unbind
    index_select = of_tensors(pytorch_names.index_select)
    index_add = memoised(pytorch_names.index_add)
    index_copy = memoised(pytorch_names.index_copy)
    index_fill = memoised(pytorch_names.index_fill)
    scatter_add = of_tensors(pytorch_names.scatter_add)
    take = of_tensors(pytorch_names.take)
    take_along_dim = memoised(pytorch_names.take_along_dim)
    bincount = pytorch_names.bincount
    argwhere = nonzero
    # PyTorch's names: movement
    expand_as = of_tensors(pytorch_names.expand_as)
    reshape_as = of_tensors(pytorch_names.reshape_as)
    tile = pytorch_names.tile
    movedim = pytorch_names.movedim
    t = pytorch_names.t
    mT = property(pytorch_names.mT)
    fliplr = pytorch_names.fliplr
    flipud = pytorch_names.flipud
    rot90 = pytorch_names.rot90
    diag_embed = memoised(pytorch_names.diag_embed)
    view_as = reshape_as
    broadcast_to = expand
    moveaxis = movedim
    swapaxes = also_named(axis0="dim0", axis1="dim1")(movement.transpose)
    swapdims = transpose
    ravel = flatten
    nelement = numel
    dim = movement.number_of_axes
    ndimension = dim
    concat = cat
    concatenate = cat
    adjoint = pytorch_names.mT
    # PyTorch's and NumPy's names: side by side, in parts, with a part written
    atleast_1d = of_tensors(arrangements.atleast_1d)
    atleast_2d = of_tensors(arrangements.atleast_2d)
    atleast_3d = of_tensors(arrangements.atleast_3d)
    broadcast_tensors = of_tensors(arrangements.broadcast_tensors)
    hstack = memoised(arrangements.hstack)
    vstack = memoised(arrangements.vstack)
    row_stack = vstack
    dstack = memoised(arrangements.dstack)
    column_stack = memoised(arrangements.column_stack)
    block_diag = memoised(arrangements.block_diag)
    cartesian_prod = of_tensors(arrangements.cartesian_prod)
    combinations = arrangements.combinations
    vander = memoised(arrangements.vander)
    hsplit = arrangements.hsplit
    vsplit = arrangements.vsplit
    dsplit = arrangements.dsplit
    split_with_sizes = split
    select_scatter = of_tensors(arrangements.select_scatter)
    slice_scatter = of_tensors(arrangements.slice_scatter)
    index_put = of_tensors(arrangements.index_put)
    masked_scatter = of_tensors(arrangements.masked_scatter)
    diagonal_scatter = of_tensors(arrangements.diagonal_scatter)
    put = of_tensors(arrangements.put)
    index_reduce = of_tensors(arrangements.index_reduce)
    diagflat = memoised(arrangements.diagflat)
    msort = memoised(arrangements.msort)
    unravel_index = memoised(arrangements.unravel_index)
    fill_diagonal_ = arrangements.fill_diagonal_
    trapezoid = memoised(arrangements.trapezoid)
    trapz = trapezoid
    cumulative_trapezoid = memoised(arrangements.cumulative_trapezoid)
    renorm = memoised(arrangements.renorm)
    sum_to_size = arrangements.sum_to_size
    unique_consecutive = arrangements.unique_consecutive
    # PyTorch's names: new tensors
    new_full = pytorch_names.new_full
    new_empty = pytorch_names.new_zeros
    new_zeros = pytorch_names.new_zeros
    new_ones = pytorch_names.new_ones
    new_tensor = pytorch_names.new_tensor
    bernoulli = pytorch_names.bernoulli
    type_as = of_tensors(pytorch_names.type_as)
    byte = pytorch_names.byte
    char = pytorch_names.char
    cpu = pytorch_names.cpu
    equal = of_tensors(pytorch_names.equal)
    # PyTorch's names: what is asked of tensors
    is_complex = properties.is_complex
    conj = properties.conj
    conj_physical = conj
    resolve_conj = conj
    resolve_neg = conj
    real = property(properties.conj)
    H = property(properties.mH)
    mH = property(properties.mH)
    isreal = properties.isreal
    angle = properties.angle
    is_signed = properties.is_signed
    is_nonzero = properties.is_nonzero
    is_same_size = of_tensors(properties.is_same_size)
    is_cuda = property(properties.is_cuda)
    is_cpu = property(properties.is_cpu)
    get_device = properties.get_device
    itemsize = property(movement.element_size)
    # devices
    to = placement.to
    to_ = placement.to_
    shard = placement.shard
    shard_ = placement.shard_
    shard_like = placement.shard_like
    # of tinygrad
    is_param = property(compat.is_param)
    is_param_ = compat.is_param_
    custom_kernel = compat.custom_kernel
    # gradients
    gradient = of_tensors(differentiation.gradient)
    backward = of_tensors(differentiation.backward)
    # other libraries
    data = interop.data
    from_dlpack = staticmethod(interop.from_dlpack)
    from_blob = staticmethod(interop.from_blob)
    __array__ = interop.to_array
    __buffer__ = interop.to_buffer
    __dlpack__ = interop.to_dlpack
    __dlpack_device__ = interop.dlpack_device

    # --- operators ------------------------------------------------------------------------------------------

    __add__ = operator(elementwise.add)
    __sub__ = operator(elementwise.sub)
    __mul__ = operator(elementwise.mul)
    __truediv__ = operator(elementwise.div)
    __floordiv__ = operator(floordiv)
    __mod__ = operator(mod)
    __pow__ = operator(pow)
    __matmul__ = operator(NumericalMethods.matmul)
    __and__ = operator(elementwise.bitwise_and)
    __or__ = operator(elementwise.bitwise_or)
    __xor__ = operator(elementwise.bitwise_xor)
    __lshift__ = operator(elementwise.lshift)
    __rshift__ = operator(elementwise.rshift)
    __radd__ = reflected(elementwise.add)
    __rsub__ = reflected(elementwise.sub)
    __rmul__ = reflected(elementwise.mul)
    __rtruediv__ = reflected(elementwise.div)
    __rfloordiv__ = reflected(floordiv)
    __rmod__ = reflected(mod)
    __rpow__ = reflected(pow)
    __rmatmul__ = reflected(NumericalMethods.matmul)
    __rand__ = reflected(elementwise.bitwise_and)
    __ror__ = reflected(elementwise.bitwise_or)
    __rxor__ = reflected(elementwise.bitwise_xor)
    __rlshift__ = reflected(elementwise.lshift)
    __rrshift__ = reflected(elementwise.rshift)
    __iadd__ = in_place(elementwise.add)
    __isub__ = in_place(elementwise.sub)
    __imul__ = in_place(elementwise.mul)
    __itruediv__ = in_place(elementwise.div)
    __ifloordiv__ = in_place(floordiv)
    __imod__ = in_place(mod)
    __ipow__ = in_place(pow)
    __imatmul__ = in_place(NumericalMethods.matmul)
    __iand__ = in_place(elementwise.bitwise_and)
    __ior__ = in_place(elementwise.bitwise_or)
    __ixor__ = in_place(elementwise.bitwise_xor)
    __ilshift__ = in_place(elementwise.lshift)
    __irshift__ = in_place(elementwise.rshift)
    __pos__ = elementwise.positive
    __neg__ = elementwise.neg
    __abs__ = elementwise.absolute
    __invert__ = elementwise.bitwise_not
    __lt__ = comparisons.lt
    __gt__ = comparisons.gt
    __le__ = comparisons.le
    __ge__ = comparisons.ge
    __eq__ = comparisons.eq  # type: ignore[assignment]  # item by item, not one bool
    __ne__ = comparisons.ne  # type: ignore[assignment]
    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem
