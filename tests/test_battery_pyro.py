"""The battery: what Pyro asks of a distribution, from shapes to compiled inference."""

import math
import warnings
from collections.abc import Callable

import pyro
import pyro.distributions as pyro_distributions
import pytest
import torch
from battery import DOUBLE, SINGLE, Case, bounded, interior
from cases import SCALARS, compiled, every_case, every_connected_scalar
from pyro.infer import SVI, JitTrace_ELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor
from torch.distributions import kl_divergence


# Shapes
@every_case
def test_shapes_are_inferred_from_those_of_parameters(case: Case) -> None:
    p = case()
    shapes = {name: value.shape for name, value in case.leaves().items()}
    if not case.family.infers_shapes or case.event_shape:
        with pytest.raises(NotImplementedError):
            type(p).infer_shapes(**shapes)
        return
    assert type(p).infer_shapes(**shapes) == (p.batch_shape, p.event_shape)
    # As Pyro's own univariate distributions tell before they are made.
    assert type(p).support.event_dim == 0


@every_case
def test_masks_leave_zeros(case: Case) -> None:
    p = case().expand_by((3,))
    t, q = p.sample(), p.escort(1.0)
    whole = p.log_prob(t)
    mask = torch.tensor([True, False, True]).reshape(3, *(1,) * len(case.batch_shape))
    torch.testing.assert_close(p.mask(mask).log_prob(t), torch.where(mask, whole, 0.0))
    masked = p.mask(mask)
    assert masked.log_prob(t).isfinite().all()
    assert (masked.mean - p.mean).abs().max() == 0
    assert not p.mask(False).log_prob(t).any()
    assert torch.equal(p.mask(True).log_prob(t), whole)
    torch.testing.assert_close(p.to_event(1).log_prob(t), whole.sum(-1))
    # A value off the support that is masked costs nothing, nor do its gradients.
    if bounded(p):
        far = (p.mean + 1e3 * p.stddev).requires_grad_()
        lost = p.mask(torch.zeros_like(mask)).log_prob(far)
        assert not lost.any()
        assert not torch.autograd.grad(lost.sum(), far)[0].any()
    if case.family.dim != 8:  # where it takes seconds
        apart = kl_divergence(p, q)
        torch.testing.assert_close(kl_divergence(p.mask(mask), q.mask(mask)), mask * apart)


# Inference
@every_connected_scalar
def test_variational_inference_improves_its_bound(case: Case) -> None:
    seen = torch.full((3, *case.event_shape), 0.9)

    def model() -> None:
        with pyro.plate("columns", 3):
            x = pyro.sample("x", case(SINGLE))
            noise = pyro_distributions.Normal(x, 0.4).to_event(len(case.event_shape))
            pyro.sample("y", noise, obs=seen)

    pyro.clear_param_store()
    guide = AutoNormal(model)
    bound = Trace_ELBO(num_particles=100, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), bound)
    losses = [svi.step() for _ in range(8)]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0] - 0.1
    assert case().support.check(guide.median()["x"].double()).all()


def learned(case: Case, role: str) -> dict[str, Tensor]:
    """The parameters, in Pyro's store."""
    leaves = case.leaves().items()
    return {k: pyro.param(f"{role}-{k}", v.detach().clone()) for k, v in leaves}


def programs(case: Case) -> tuple[Callable[[Tensor], None], ...]:
    """A model with the density as prior and as likelihood, and a guide of it."""

    def model(seen: Tensor) -> None:
        p = case.of(**learned(case, "model"))
        with pyro.plate("columns", len(seen)):
            x = pyro.sample("x", p)
            noise = pyro_distributions.Normal(x, 0.4).to_event(len(case.event_shape))
            pyro.sample("y", noise, obs=seen)
            pyro.sample("z", p, obs=seen)

    def guide(seen: Tensor) -> None:
        q = case.of(**learned(case, "guide"))
        with pyro.plate("columns", len(seen)):
            pyro.sample("x", q)

    return model, guide


def bound_and_slopes(
    bound: Trace_ELBO, case: Case, seen: Tensor, calls: int
) -> tuple[float, list[Tensor]]:
    """Of the last call, whose draws are those of a seed; the first is what traces."""
    pyro.clear_param_store()
    model, guide = programs(case)
    for _ in range(calls):
        torch.manual_seed(0)
        for _, value in pyro.get_param_store().named_parameters():
            value.grad = None
        loss = bound.loss_and_grads(model, guide, seen)
    return loss, [value.grad for _, value in pyro.get_param_store().named_parameters()]


@pytest.mark.parametrize(("case", "_"), [compiled(case, "jit") for case in SCALARS])
def test_traced_inference_is_the_same(case: Case, _: str) -> None:
    seen = interior(case(), 3).to(DOUBLE)
    traced = JitTrace_ELBO(ignore_jit_warnings=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".torch.jit.* is deprecated", DeprecationWarning)
        if case.family.untraced:
            with pytest.raises(RuntimeError, match=case.family.untraced):
                bound_and_slopes(traced, case, seen, 1)
            return
        found = bound_and_slopes(traced, case, seen, 2)
    expected = bound_and_slopes(Trace_ELBO(), case, seen, 1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
