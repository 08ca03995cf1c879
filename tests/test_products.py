"""The blocked log-sum-exp of a product is the plain one, values and gradients, whatever the blocks."""

from functools import partial

import pytest
import torch

from fewpairs.plans import products
from fewpairs.plans.potentials import DiagonalAtoms, FullAtoms
from fewpairs.plans.products import logsumexp_product, logsumexp_quadratic, with_one

FEATURES = {"with one": (with_one, 5), "diagonal": (DiagonalAtoms.features, 9), "full": (FullAtoms.features, 21)}


@pytest.mark.parametrize("block", [7, 64, 2**18])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("features, n_features", FEATURES.values(), ids=FEATURES)
def test_equals_the_plain_form(block, batch, features, n_features, generator: torch.Generator, monkeypatch) -> None:
    monkeypatch.setattr(products, "CPU_BLOCK", block)
    rows = torch.randn(*batch, 13, 4, dtype=torch.float64, generator=generator).requires_grad_()
    columns = (20 * torch.randn(*batch, 29, n_features, dtype=torch.float64, generator=generator)).requires_grad_()
    pull = torch.randn(*batch, 13, dtype=torch.float64, generator=generator)

    plain = torch.logsumexp(features(rows) @ columns.mT, dim=-1)
    expected = torch.autograd.grad(plain, (rows, columns), pull)
    value = logsumexp_product(rows, columns, features)
    grads = torch.autograd.grad(value, (rows, columns), pull)

    torch.testing.assert_close(value, plain, atol=1e-12, rtol=1e-12)
    for grad, wanted in zip(grads, expected, strict=True):
        torch.testing.assert_close(grad, wanted, atol=1e-10, rtol=1e-10)  # sums of thirty terms of size twenty


def test_large_exponents_do_not_overflow() -> None:
    rows, columns = torch.tensor([[1.0]]), torch.tensor([[1e4, 0.0], [1e4, 0.0], [0.0, -1e30]])
    torch.testing.assert_close(logsumexp_product(rows, columns), torch.tensor([1e4 + 0.6931]), atol=1e-3, rtol=0)


def test_without_gradient_nothing_is_kept() -> None:
    with torch.no_grad():
        assert logsumexp_product(torch.zeros(2, 1, requires_grad=True), torch.zeros(3, 2)).grad_fn is None


MAPPED = {"both": (0, 0), "rows": (0, None), "columns": (None, 0), "rows, inner axis": (1, None)}


@pytest.mark.parametrize("block", [7, 2**18])
@pytest.mark.parametrize("in_dims", MAPPED.values(), ids=MAPPED)
def test_under_vmap_it_is_the_loop(block: int, in_dims, generator: torch.Generator, monkeypatch) -> None:
    monkeypatch.setattr(products, "CPU_BLOCK", block)
    rows = torch.randn(3, 13, 4, dtype=torch.float64, generator=generator)
    columns = 5 * torch.randn(3, 29, 9, dtype=torch.float64, generator=generator)
    pull = torch.randn(3, 13, dtype=torch.float64, generator=generator)
    rows, columns = (
        part[0] if dim is None else part.movedim(0, dim) for part, dim in zip((rows, columns), in_dims, strict=True)
    )
    inputs = (rows.requires_grad_(), columns.requires_grad_())

    def one(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        return logsumexp_product(rows, columns, DiagonalAtoms.features)

    def member(part: torch.Tensor, dim: int | None, number: int) -> torch.Tensor:
        return part if dim is None else part.select(dim, number)

    mapped = torch.vmap(one, in_dims=in_dims)(*inputs)
    looped = torch.stack([one(member(inputs[0], in_dims[0], k), member(inputs[1], in_dims[1], k)) for k in range(3)])
    torch.testing.assert_close(mapped, looped, atol=1e-12, rtol=1e-12)  # the same sums, perhaps in another order
    for grad, wanted in zip(
        torch.autograd.grad(mapped, inputs, pull), torch.autograd.grad(looped, inputs, pull), strict=True
    ):
        torch.testing.assert_close(grad, wanted, atol=1e-10, rtol=1e-10)


def quadratic_parts(batch: tuple[int, ...], generator: torch.Generator) -> list[torch.Tensor]:
    draw = partial(torch.randn, dtype=torch.float64, generator=generator)
    matrices = draw(*batch, 5, 4, 4)
    parts = [draw(*batch, 13, 4), matrices + matrices.mT, 3 * draw(*batch, 5, 4), draw(*batch, 5)]
    return [part.requires_grad_() for part in parts]


def plain_quadratic(rows, matrices, vectors, constants) -> torch.Tensor:
    logits = torch.einsum("...ni,...mij,...nj->...nm", rows, matrices, rows) / 2 + rows @ vectors.mT
    return torch.logsumexp(logits + constants.unsqueeze(-2), dim=-1)


@pytest.mark.parametrize("block", [7, 2**18])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_quadratic_form_equals_the_plain_one(block, batch, generator: torch.Generator, monkeypatch) -> None:
    monkeypatch.setattr(products, "CPU_BLOCK", block)
    parts = quadratic_parts(batch, generator)
    pull = torch.randn(*batch, 13, dtype=torch.float64, generator=generator)
    plain, value = plain_quadratic(*parts), logsumexp_quadratic(*parts)
    torch.testing.assert_close(value, plain, atol=1e-12, rtol=1e-12)
    for grad, wanted in zip(
        torch.autograd.grad(value, parts, pull), torch.autograd.grad(plain, parts, pull), strict=True
    ):
        torch.testing.assert_close(grad, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("in_dims", [(0, 0, 0, 0), (0, None, None, None), (None, 0, 0, 0)])
def test_the_quadratic_form_under_vmap_is_the_loop(in_dims, generator: torch.Generator) -> None:
    stacked = quadratic_parts((3,), generator)
    parts = [part if dim == 0 else part[0] for part, dim in zip(stacked, in_dims, strict=True)]
    loop = torch.stack(
        [
            logsumexp_quadratic(*(part[k] if dim == 0 else part for part, dim in zip(parts, in_dims, strict=True)))
            for k in range(3)
        ]
    )
    torch.testing.assert_close(torch.vmap(logsumexp_quadratic, in_dims)(*parts), loop, atol=1e-12, rtol=1e-12)
