"""Exact dense Hessians of linear models and of networks with one hidden layer, in closed form.

Every block is a weighted Gram matrix Σ_n w_n a_n b_nᵀ, and so one matrix product: no column of the
Hessian is ever differentiated. What belongs to one sample (probabilities, derivatives, weights) is
computed in float64 for every dtype, since p (1 − p) and variances under p cancel in confident
models. The matrix products run in the dtype of the tensors, and chunks of samples are added up in
it. In float32 that leaves 1e-7 of the matrix's norm with ten thousand samples, and 3e-7 with three
hundred thousand; pass float64 tensors for full precision.

Letters: N samples, d inputs, m hidden units, C outputs; x (N, d), u = W x, h = σ(u), z = V h; s a
sample's weight; p = softmax(z), r = s ∂ℓ/∂z, B = s ∂²ℓ/∂z². Cross-entropy has
B = s (diag p − p pᵀ), and ½‖z − y‖² has B = s I.

Reference: Dong, Zhang, Yao, Sun, "Towards Quantifying the Hessian Structure of Neural Networks",
(3) and (5) for linear models, (8) to (18) for one hidden layer.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import TooLargeError
from eigenscape_papers.theory._one_hidden_layer import (
    Activation,
    OutputTerms,
    Units,
    activation_of,
    hidden_weights,
    output_terms,
    require_layers,
    sample_weights,
    units_of,
)

# Beside the result, and beside the tensors that were passed.
_CHUNK_BYTES = 2**28
# A Gram matrix is symmetric: in four panels, 5/8 of it are computed. Narrow products are slow.
_PANELS, _NARROWEST = 4, 64


@full_precision()
def linear_hessian(
    inputs: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    loss: str = "cross-entropy",
    max_bytes: int = 8 * 2**30,
) -> Tensor:
    """Return the Hessian of the mean loss of the linear model z = V x, without bias.

    Blocks: mean (p_c 1[c = c'] − p_c p_c') x xᵀ for cross-entropy (Dong (5)), and 1[c = c'] mean
    x xᵀ for squared errors (Dong (3)). The latter is that of ½‖z − y‖², the default of
    `SquaredError`; the loss ‖z − y‖² that Dong (2) prints has twice this Hessian.

    Cost: about N C² d² operations; memory for the result and 256 MB.

    Args:
        inputs: The samples x (N, d), float32 or float64.
        weight: V (C, d), with the same dtype and device.
        targets: Classes (N,) or class probabilities (N, C) for cross-entropy; values (N, C) for
            squared errors, which do not enter.
        loss: "cross-entropy" or "squared-error", as `CrossEntropy()` and `SquaredError()` are.
        max_bytes: Refuse to make anything larger.

    Returns:
        The matrix (C·d, C·d), rows in the order of `weight` flattened row-major. It equals its
        transpose bit for bit.

    Raises:
        WrongTypeError: If something is no real tensor.
        ShapeError: If shapes, dtypes or devices do not fit together.
        InvalidArgumentError: If a class is out of range.
        EmptySelectionError: If there is no sample.
        NonFiniteError: If outputs or targets are NaN or infinite.
        TooLargeError: If the matrix has more than `max_bytes`.
        UnknownNameError: If there is no such loss.

    Examples:
        One sample x = 2 and two classes with p = ½: p (1 − p) x² = 1.

        >>> x, V = torch.tensor([[2.0]]), torch.zeros(2, 1)
        >>> linear_hessian(x, V, torch.tensor([0]))
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """
    require_layers("linear_hessian", inputs, weight=weight)
    C, d = weight.shape
    s, count = sample_weights("linear_hessian", inputs, targets, C, loss)
    H = _zeros("linear_hessian", C * d, inputs, max_bytes)
    V = weight.detach().double()
    for x, y, s_n in _chunks(inputs, targets, s, 4 * d + 8 * C):
        _add_last_layer(H.view(C, d, C, d), x, output_terms(x.double() @ V.T, y, s_n, loss))
    return H.div_(count)


@full_precision()
def one_hidden_layer_hessian(
    inputs: Tensor,
    hidden: Tensor,
    output: Tensor,
    targets: Tensor,
    *,
    loss: str = "cross-entropy",
    activation: str | Activation = "relu",
    max_bytes: int = 8 * 2**30,
) -> Tensor:
    """Return the Hessian of the mean loss of z = V σ(W x), without biases.

    With K = B V, blocks are sums over the samples: of (σ'_i σ'_j v_iᵀK_j + 1[i = j] σ''_i v_iᵀr)
    x xᵀ for rows i, j of W; of σ'_i K_ci x hᵀ, with σ'_i r_c x added to column i, for row i of W
    and row c of V; of B_cc' h hᵀ for rows of V. For ReLU these are Dong (14), (18), (15), and for
    squared errors (8), (11), (9), all for ½‖z − y‖², the default of `SquaredError`: the loss
    ‖z − y‖² of Dong (7) has twice this Hessian, as (11) says and (8) and (9) do not.

    Cost: about N (m d + m C)² operations; samples that a unit maps to zero with a zero derivative
    are left out, which saves ReLU networks two thirds. Memory for the result and 256 MB.

    Args:
        inputs: The samples x (N, d), float32 or float64.
        hidden: W (m, d), with the same dtype and device.
        output: V (C, m), likewise.
        targets: Classes (N,) or class probabilities (N, C) for cross-entropy; values (N, C) for
            squared errors.
        loss: "cross-entropy" or "squared-error", as `CrossEntropy()` and `SquaredError()` are.
        activation: "relu", "tanh", "gelu", or a function that maps each entry on its own and can
            be differentiated twice by autograd. A kink counts as autograd counts it.
        max_bytes: Refuse to make anything larger.

    Returns:
        The matrix (m·d + C·m, m·d + C·m), rows in the order of `hidden` and then `output`, each
        flattened row-major. It equals its transpose bit for bit.

    Raises:
        WrongTypeError: If something is no real tensor.
        ShapeError: If shapes, dtypes or devices do not fit together.
        InvalidArgumentError: If a class is out of range, or the activation mixes units.
        EmptySelectionError: If there is no sample.
        NonFiniteError: If outputs or targets are NaN or infinite.
        TooLargeError: If the matrix has more than `max_bytes`.
        UnknownNameError: If there is no such loss or activation.

    Examples:
        ½ (v σ(w x) − y)² at x = 1, w = 2, v = 3, y = 5: entries v², r + v h = 1 + 6, h².

        >>> x, w, v, y = (torch.tensor([[number]]) for number in (1.0, 2.0, 3.0, 5.0))
        >>> one_hidden_layer_hessian(x, w, v, y, loss="squared-error")
        tensor([[9., 7.],
                [7., 4.]])
    """
    call = "one_hidden_layer_hessian"
    require_layers(call, inputs, hidden=hidden, output=output)
    sigma = activation_of(call, activation, inputs)
    (m, d), C = hidden.shape, output.shape[0]
    s, count = sample_weights(call, inputs, targets, C, loss)
    H = _zeros(call, m * (d + C), inputs, max_bytes)
    first, last = slice(0, m * d), slice(m * d, None)
    W, V = hidden.detach().double(), output.detach().double()
    for x, y, s_n in _chunks(inputs, targets, s, 4 * d + 8 * m + 10 * C):
        units = units_of(sigma, x.double() @ W.T)
        terms = output_terms(units.h @ V.T, y, s_n, loss)
        _add_last_layer(H[last, last].view(C, m, C, m), units.h.to(x), terms)
        for i in range(m):
            K = terms.product(V[:, i])
            w = hidden_weights(terms, units, V, K, i)
            _add_hidden_rows(H[first, first].view(m, d, m, d), x, i, w)
            _add_mixed_rows(H[first, last].view(m, d, C, m)[i], x, i, K, terms.r, units)
    H[last, first] = H[first, last].T
    return H.div_(count)


@full_precision()
def linear_block_norms(
    inputs: Tensor, weight: Tensor, targets: Tensor, *, loss: str = "cross-entropy"
) -> Tensor:
    """Return the Frobenius norms of all blocks of `linear_hessian`, without forming them.

    ‖Σ w_n x_n x_nᵀ‖² = Σ w_n w_n' (x_nᵀx_n')², so that a block costs N² operations in place of
    N d², where this is less. The output blocks of a network are those of a linear model of its
    last features: pass h and V.

    Cost: about C² N min(N, d²) operations; memory for N × (C + d) numbers and 256 MB.

    Args:
        inputs: The samples x (N, d), float32 or float64.
        weight: V (C, d), with the same dtype and device.
        targets: As for `linear_hessian`.
        loss: "cross-entropy" or "squared-error".

    Returns:
        The norms (C, C) in float64, with the digits that the inputs' dtype leaves.

    Raises:
        EigenscapeError: As `linear_hessian` does.

    Examples:
        >>> x, V = torch.tensor([[2.0]]), torch.zeros(2, 1)
        >>> linear_block_norms(x, V, torch.tensor([0]))
        tensor([[1., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    call = "linear_block_norms"
    require_layers(call, inputs, weight=weight)
    C = len(weight)
    s, count = sample_weights(call, inputs, targets, C, loss)
    x, V = inputs.detach(), weight.detach().double()
    terms = output_terms(x.double() @ V.T, targets.detach(), s, loss)
    p = None if terms.p is None else terms.p.to(x)

    def weights(c: int) -> Tensor:
        if terms.p is None or p is None:
            w, diagonal = x.new_zeros(len(x), C), s
        else:
            share = s * terms.p[:, c]
            w, diagonal = -p * share[:, None].to(x), share * (1.0 - terms.p[:, c])
        w[:, c] = diagonal
        return w

    return _norms(x, C, weights) / count


@full_precision()
def hidden_block_norms(
    inputs: Tensor,
    hidden: Tensor,
    output: Tensor,
    targets: Tensor,
    *,
    loss: str = "cross-entropy",
    activation: str | Activation = "relu",
) -> Tensor:
    """Return the Frobenius norms of the blocks of W's rows in `one_hidden_layer_hessian`.

    As `linear_block_norms` does, and at the same cost with m in place of C.

    Args:
        inputs: The samples x (N, d), float32 or float64.
        hidden: W (m, d), with the same dtype and device.
        output: V (C, m), likewise.
        targets: As for `one_hidden_layer_hessian`.
        loss: "cross-entropy" or "squared-error".
        activation: As for `one_hidden_layer_hessian`.

    Returns:
        The norms (m, m) in float64, with the digits that the inputs' dtype leaves.

    Raises:
        EigenscapeError: As `one_hidden_layer_hessian` does.

    Examples:
        >>> x, w, v, y = (torch.tensor([[number]]) for number in (1.0, 2.0, 3.0, 5.0))
        >>> hidden_block_norms(x, w, v, y, loss="squared-error")
        tensor([[9.]], dtype=torch.float64)
    """
    call = "hidden_block_norms"
    require_layers(call, inputs, hidden=hidden, output=output)
    sigma = activation_of(call, activation, inputs)
    s, count = sample_weights(call, inputs, targets, len(output), loss)
    x, W, V = inputs.detach(), hidden.detach().double(), output.detach().double()
    units = units_of(sigma, x.double() @ W.T)
    terms = output_terms(units.h @ V.T, targets.detach(), s, loss)

    def weights(i: int) -> Tensor:
        return hidden_weights(terms, units, V, terms.product(V[:, i]), i)

    return _norms(x, len(W), weights) / count


def _add_last_layer(blocks: Tensor, a: Tensor, terms: OutputTerms) -> None:
    """Add Σ B_cc' a aᵀ to blocks (C, m, C, m), for inputs a (n, m) of the last layer."""
    s, p = terms.s, terms.p
    C, m = blocks.shape[:2]
    if p is None:
        blocks.diagonal(dim1=0, dim2=2).add_(_gram(a, s)[:, :, None])
    elif m > C:
        for c in range(C):
            for e in range(c, C):
                share = 1.0 - p[:, c] if c == e else -p[:, e]
                _add_pair(blocks, c, e, _gram(a, s * p[:, c] * share))
    else:
        # Fewer inputs than classes: one large product for each pair of inputs.
        diagonal = blocks.diagonal(dim1=0, dim2=2)
        kept = diagonal.clone()
        q, variance = p.to(a), (s[:, None] * p * (1.0 - p)).to(a)
        by_input = blocks.permute(1, 0, 3, 2)
        for k in range(m):
            for j in range(k, m):
                _add_pair(by_input, k, j, _gram(q, -s * a[:, k] * a[:, j]))
            kept[k] += (a * a[:, k, None]).T @ variance
        diagonal.copy_(kept)


def _add_hidden_rows(blocks: Tensor, x: Tensor, i: int, w: Tensor) -> None:
    """Add Σ w_j x xᵀ to the blocks (i, j) and (j, i) of (m, d, m, d), for all j from i on."""
    for j in range(i, len(blocks)):
        _add_pair(blocks, i, j, _gram(x, w[:, j]))


def _add_mixed_rows(blocks: Tensor, x: Tensor, i: int, K: Tensor, r: Tensor, units: Units) -> None:
    """Add Σ σ'_i (K_c h_k + 1[k = i] r_c) x to blocks (d, C, m)."""
    same_unit = (K * units.h[:, i, None] + r).to(x)
    others = K.to(x)
    for k in range(blocks.shape[2]):
        if k == i:
            blocks[:, :, k] += _product(x, units.first[:, i], same_unit)
        else:
            blocks[:, :, k] += _product(x, units.first[:, i] * units.h[:, k], others)


def _add_pair(blocks: Tensor, i: int, j: int, block: Tensor) -> None:
    """Add one symmetric block at (i, j) and at (j, i)."""
    blocks[i, :, j] += block
    if i != j:
        blocks[j, :, i] += block


def _gram(a: Tensor, w: Tensor) -> Tensor:
    """Return Σ w_n a_n a_nᵀ, symmetric bit for bit."""
    (a,), w = _active(w, a)
    weighted = a * w[:, None].to(a)
    size = a.shape[1]
    gram = a.new_empty(size, size)
    panel = max(_NARROWEST, -(-size // _PANELS))
    for start in range(0, size, panel):
        stop = min(start + panel, size)
        torch.mm(a[:, start:stop].T, weighted[:, start:], out=gram[start:stop, start:])
    return gram.triu() + gram.triu(1).T


def _product(a: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return Σ w_n a_n b_nᵀ; b may be a single row for all samples."""
    if len(b) == 1:
        return torch.outer(a.T @ w.to(a), b[0])
    (a, b), w = _active(w, a, b)
    return (a * w[:, None].to(a)).T @ b


def _norms(x: Tensor, size: int, weights: Callable[[int], Tensor]) -> Tensor:
    """Return ‖Σ_n w_nj x_n x_nᵀ‖ (size, size), where `weights(i)` gives w (N, size) for row i."""
    N, d = x.shape
    squares = torch.zeros(size, size, dtype=torch.float64, device=x.device)
    if d * d <= N:
        step = _fitting(2 * d * d)
        for i in range(size):
            for start in range(i, size, step):
                w = weights(i)[:, start : start + step].to(x)
                blocks = x.new_zeros(w.shape[1], d * d)
                for a, v in zip(x.split(step), w.split(step), strict=True):
                    blocks += v.T @ (a[:, :, None] * a[:, None, :]).flatten(1)
                squares[i, start : start + step] = blocks.double().square().sum(1)
    else:
        for rows in torch.arange(N, device=x.device).split(_fitting(3 * N)):
            kernel = (x[rows] @ x.T).square_()
            for i in range(size):
                w = weights(i)[:, i:].to(x)
                squares[i, i:] += (w[rows] * (kernel @ w)).sum(0, dtype=torch.float64)
    # Rounding can leave a norm of zero slightly below it.
    return (squares.triu() + squares.triu(1).T).clamp_min(0.0).sqrt()


def _active(w: Tensor, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    """Leave out the samples without weight: three quarters of them for a pair of ReLU units."""
    (index,) = w.nonzero(as_tuple=True)
    if len(index) == len(w):
        return tensors, w
    return tuple(tensor[index] for tensor in tensors), w[index]


def _chunks(
    inputs: Tensor, targets: Tensor, s: Tensor, per_sample: int
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Cut the samples so that what is computed for each of them fits the memory."""
    chunks = (tensor.detach().split(_fitting(per_sample)) for tensor in (inputs, targets, s))
    return zip(*chunks, strict=True)


def _fitting(per_sample: int) -> int:
    """Return how many samples fit the memory, with so many float64 numbers for each."""
    return max(1, _CHUNK_BYTES // (8 * per_sample))


def _zeros(call: str, size: int, like: Tensor, max_bytes: int) -> Tensor:
    needed = size * size * like.dtype.itemsize
    if needed > max_bytes:
        raise TooLargeError(
            f"`{call}()` makes a {size} × {size} matrix of {needed:.1e} bytes, over the limit "
            f"{max_bytes:.1e}. Multiply with `Hessian(risk)` instead of forming it, or pass "
            "`max_bytes=` if you mean it."
        )
    return like.new_zeros(size, size)
