"""The one expensive sum: out[i] = log Σ_j exp⟨rows[i], columns[j]⟩, without ever holding the matrix of products.

Normalisers, potentials and marginals of a mixture plan are all of this form, so this file is where its time goes. The
sum runs block by block with a running maximum, and the backward pass recomputes each block: memory stays linear in the
number of rows and columns. A bias is one more inner dimension (append it to the columns and a 1 to the rows).
"""

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["logsumexp_product"]

# Entries in one block of the product. On a CPU a block should stay in the second-level cache, since four passes go over
# it; on a GPU it should be large enough that launching the passes costs little against running them.
CPU_BLOCK = 2**18
GPU_BLOCK = 2**26


def logsumexp_product(rows: Tensor, columns: Tensor) -> Tensor:
    """Computes log Σ_j exp⟨rows[i], columns[j]⟩ for every row i.

    Arguments:
        rows: The left factors, of shape (..., n, k).
        columns: The right factors, of shape (..., m, k); all entries finite.

    Returns:
        A tensor of shape (..., n), differentiable once in both arguments.

    Example:
        >>> logsumexp_product(torch.zeros(3, 2), torch.zeros(4, 2)).exp()
        tensor([4.0000, 4.0000, 4.0000])
    """
    if not (torch.is_grad_enabled() and (rows.requires_grad or columns.requires_grad)):
        return _forward(rows, columns)
    return _LogSumExpProduct.apply(rows, columns)


def _blocks(rows: Tensor, columns: Tensor) -> tuple[int, int]:
    """How many rows and columns one block holds: as near to a square as the sizes allow."""
    budget = GPU_BLOCK if rows.is_cuda else CPU_BLOCK
    budget = max(budget // max(math.prod(rows.shape[:-2]), 1), 1)
    n_columns = min(columns.shape[-2], max(math.isqrt(budget), budget // max(rows.shape[-2], 1)))
    n_rows = min(rows.shape[-2], max(budget // max(n_columns, 1), 1))
    return max(n_rows, 1), max(n_columns, 1)


def _forward(rows: Tensor, columns: Tensor) -> Tensor:
    n_rows, n_columns = _blocks(rows, columns)
    lowest = torch.finfo(rows.dtype).min
    outcome = []
    for part in rows.split(n_rows, dim=-2):
        top = part.new_full((), -math.inf)
        total = part.new_zeros(())
        for block in columns.split(n_columns, dim=-2):
            product = part @ block.mT
            new_top = torch.maximum(top, product.amax(dim=-1)).clamp(min=lowest)
            total = total * (top - new_top).exp() + product.sub_(new_top.unsqueeze(-1)).exp_().sum(dim=-1)
            top = new_top
        outcome.append(top + total.log())
    return torch.cat(outcome, dim=-1)


def _backward(rows: Tensor, columns: Tensor, outcome: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    n_rows, n_columns = _blocks(rows, columns)
    # softmax = exp(⟨row, column⟩ − outcome): the subtraction rides along as one more inner dimension.
    shifted_rows = torch.cat([rows, -outcome.unsqueeze(-1)], dim=-1)
    shifted_columns = torch.cat([columns, torch.ones_like(columns[..., :1])], dim=-1)
    scaled_rows = rows * grad.unsqueeze(-1)

    grad_rows = torch.empty_like(rows)
    grad_columns = columns.new_zeros((*rows.shape[:-2], *columns.shape[-2:]))
    for row in range(0, rows.shape[-2], n_rows):
        here = slice(row, row + n_rows)
        pull = rows.new_zeros(())
        for column in range(0, columns.shape[-2], n_columns):
            there = slice(column, column + n_columns)
            softmax = (shifted_rows[..., here, :] @ shifted_columns[..., there, :].mT).exp_()
            pull = pull + softmax @ columns[..., there, :]
            grad_columns[..., there, :] += softmax.mT @ scaled_rows[..., here, :]
        grad_rows[..., here, :] = pull * grad[..., here].unsqueeze(-1)
    return grad_rows, grad_columns


class _LogSumExpProduct(torch.autograd.Function):
    @staticmethod
    def forward(rows: Tensor, columns: Tensor) -> Tensor:
        return _forward(rows, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns, outcome = ctx.saved_tensors
        return _backward(rows, columns, outcome, grad)
