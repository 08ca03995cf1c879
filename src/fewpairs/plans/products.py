"""The one expensive sum: out[i] = log Σ_j exp⟨φ(rows[i]), columns[j]⟩, without ever holding the matrix of products.

Normalisers, potentials and marginals of a mixture plan are all of this form, so this file is where its time goes. The
sum runs block by block with a running maximum, and the backward pass recomputes each block, features included: memory
stays linear in the number of rows and columns. Where the features are all products of two entries, and the columns are few,
`logsumexp_quadratic` says the same with matrices and never forms the features.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["logsumexp_product", "logsumexp_quadratic", "with_one"]

# Entries in one block of the product. On a CPU a block should stay in the second-level cache, since four passes go over
# it; on a GPU it should be large enough that launching the passes costs little against running them.
CPU_BLOCK = 2**18
GPU_BLOCK = 2**26

# Exponents below it count as it: exp(−60) is far below the last digit of the sum, and smaller numbers fall out of float32's
# normal range, where a CPU computes several times slower.
FAINTEST = -60.0

Features = Callable[[Tensor], Tensor]


def with_one(rows: Tensor) -> Tensor:
    """The features φ(u) = [u, 1]: the last entry of a column is then a bias."""
    return torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)


def logsumexp_product(rows: Tensor, columns: Tensor, features: Features = with_one) -> Tensor:
    """Computes log Σ_j exp⟨φ(rows[i]), columns[j]⟩ for every row i.

    Arguments:
        rows: What the features are taken of, of shape (..., n, d).
        columns: The right factors, of shape (..., m, k); all entries finite.
        features: The map φ from rows of d numbers to rows of k, each row on its own.

    Returns:
        A tensor of shape (..., n), differentiable once in rows and columns.

    Example:
        >>> logsumexp_product(torch.zeros(3, 2), torch.zeros(4, 3)).exp()
        tensor([4., 4., 4.])
    """
    return _LogSumExpProduct.apply(rows, columns, features)


def logsumexp_quadratic(rows: Tensor, matrices: Tensor, vectors: Tensor, constants: Tensor) -> Tensor:
    """Computes log Σ_j exp(½ rows[i]ᵀ A_j rows[i] + b_jᵀ rows[i] + c_j) for every row i.

    Arguments:
        rows: Of shape (..., n, d).
        matrices: The A_j, symmetric, of shape (..., m, d, d).
        vectors: The b_j, of shape (..., m, d).
        constants: The c_j, of shape (..., m).

    Returns:
        A tensor of shape (..., n), differentiable once in all four.

    Example:
        >>> logsumexp_quadratic(torch.ones(1, 2), 2 * torch.eye(2)[None], torch.zeros(1, 2), torch.zeros(1))
        tensor([2.])
    """
    return _LogSumExpQuadratic.apply(rows, matrices, vectors, constants)


def _blocks(rows: Tensor, columns: Tensor) -> tuple[int, int]:
    """How many rows and columns one block holds: as near to a square as the sizes allow, the features no larger."""
    budget = GPU_BLOCK if rows.is_cuda else CPU_BLOCK
    budget = max(budget // max(math.prod(rows.shape[:-2]), 1), 1)
    n_columns = min(columns.shape[-2], max(math.isqrt(budget), budget // max(rows.shape[-2], 1)))
    n_rows = min(rows.shape[-2], budget // max(n_columns, columns.shape[-1], 1))
    return max(n_rows, 1), max(n_columns, 1)


def _forward(rows: Tensor, columns: Tensor, features: Features) -> Tensor:
    n_rows, n_columns = _blocks(rows, columns)
    lowest = torch.finfo(rows.dtype).min
    outcome = []
    for part in rows.split(n_rows, dim=-2):
        left = features(part)
        top = part.new_full((), -math.inf)
        total = part.new_zeros(())
        for block in columns.split(n_columns, dim=-2):
            product = left @ block.mT
            new_top = torch.maximum(top, product.amax(dim=-1)).clamp(min=lowest)
            total = total * (top - new_top).exp() + product.sub_(new_top.unsqueeze(-1)).clamp_(min=FAINTEST).exp_().sum(
                dim=-1
            )
            top = new_top
        outcome.append(top + total.log())
    return torch.cat(outcome, dim=-1)


def _backward(
    rows: Tensor, columns: Tensor, features: Features, outcome: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    n_rows, n_columns = _blocks(rows, columns)
    shifted_columns = with_one(columns)
    grad_rows = torch.empty_like(rows)
    grad_columns = columns.new_zeros((*rows.shape[:-2], *columns.shape[-2:]))
    for start in range(0, rows.shape[-2], n_rows):
        here = slice(start, start + n_rows)
        pull = grad[..., here].unsqueeze(-1)
        with torch.enable_grad():
            part = rows[..., here, :].detach().requires_grad_()
            traced = features(part)
        left = traced.detach()
        # softmax = exp(⟨row, column⟩ − outcome): the subtraction rides along as one more inner dimension.
        shifted = torch.cat([left, -outcome[..., here].unsqueeze(-1)], dim=-1)
        scaled = left * pull
        mean = rows.new_zeros(())
        for first in range(0, columns.shape[-2], n_columns):
            there = slice(first, first + n_columns)
            softmax = (shifted @ shifted_columns[..., there, :].mT).clamp_(min=FAINTEST).exp_()
            mean = mean + softmax @ columns[..., there, :]
            grad_columns[..., there, :] += softmax.mT @ scaled
        (grad_rows[..., here, :],) = torch.autograd.grad(traced, part, mean * pull)
    return grad_rows, grad_columns


class _LogSumExpProduct(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, columns: Tensor, features: Features) -> Tensor:
        return _forward(rows, columns, features)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Features], output: Tensor) -> None:
        rows, columns, ctx.features = inputs
        ctx.save_for_backward(rows, columns, output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rows: Tensor, columns: Tensor, features: Features) -> Any:
        return _LogSumExpProduct.apply(*_lead(info.batch_size, in_dims[:2], rows, columns), features), 0

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, columns, outcome = ctx.saved_tensors
        return *_backward(rows, columns, ctx.features, outcome, grad), None


class _LogSumExpQuadratic(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, matrices: Tensor, vectors: Tensor, constants: Tensor) -> Tensor:
        parts = rows.split(_rows_of(rows, vectors), dim=-2)
        return torch.cat([torch.logsumexp(_logits(part, matrices, vectors, constants)[0], -1) for part in parts], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return _LogSumExpQuadratic.apply(*_lead(info.batch_size, in_dims, *tensors)), 0

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        rows, matrices, vectors, constants, outcome = ctx.saved_tensors
        grad_rows, (grad_matrices, grad_vectors, grad_constants) = (
            torch.empty_like(rows),
            [torch.zeros_like(tensor) for tensor in (matrices, vectors, constants)],
        )
        n_rows = _rows_of(rows, vectors)
        for start in range(0, rows.shape[-2], n_rows):
            here = slice(start, start + n_rows)
            part = rows[..., here, :]
            logits, slopes = _logits(part, matrices, vectors, constants)
            weight = (logits - outcome[..., here].unsqueeze(-1)).exp() * grad[..., here].unsqueeze(-1)  # (..., n, m)
            grad_rows[..., here, :] = (weight.unsqueeze(-1) * slopes).sum(-2)
            weighted = (weight.unsqueeze(-1) * part.unsqueeze(-2)).flatten(-2)  # (..., n, m · d)
            grad_matrices += (weighted.mT @ part).unflatten(-2, vectors.shape[-2:]) / 2
            grad_vectors += weight.mT @ part
            grad_constants += weight.sum(-2)
        return grad_rows, grad_matrices, grad_vectors, grad_constants


def _logits(rows: Tensor, matrices: Tensor, vectors: Tensor, constants: Tensor) -> tuple[Tensor, Tensor]:
    """The exponents, (..., n, m), and their slopes in the rows, A_j row + b_j, (..., n, m, d)."""
    moved = (rows @ matrices.flatten(-3, -2).mT).unflatten(-1, vectors.shape[-2:])
    slopes = moved + vectors.unsqueeze(-3)
    logits = ((slopes + vectors.unsqueeze(-3)) * rows.unsqueeze(-2)).sum(-1) / 2 + constants.unsqueeze(-2)
    return logits, slopes


def _rows_of(rows: Tensor, vectors: Tensor) -> int:
    """How many rows one block holds."""
    budget = GPU_BLOCK if rows.is_cuda else CPU_BLOCK
    return max(budget // max(math.prod(rows.shape[:-2]) * vectors.shape[-2] * vectors.shape[-1], 1), 1)


def _lead(n_mapped: int, in_dims: tuple[int | None, ...], *tensors: Tensor) -> list[Tensor]:
    """Under `torch.vmap` the mapped dimension becomes one more leading one: the blocks know how to deal with that."""
    return [
        tensor.expand(n_mapped, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip(tensors, in_dims, strict=True)
    ]
