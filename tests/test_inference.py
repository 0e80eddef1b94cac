"""Sites in standard coordinates: the same distribution, warnings, and chains that are right."""

import pyro
import pyro.distributions as dist
import pytest
import torch
from battery import DOUBLE, number
from cases_kernel import bell
from pyro import poutine
from pyro.infer import MCMC, NUTS, Trace_ELBO, config_enumerate
from pyro.infer.autoguide import init_to_value
from pyro.infer.autoguide.initialization import InitMessenger, init_to_uniform
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import potential_grad
from torch import Tensor
from torch.distributions import biject_to, constraints

import sparsefam as sf
from sparsefam.inference import (
    AutoSupportReparam,
    MovingSupportWarning,
    RestrictedPrior,
    SupportReparam,
    check_model,
    warn_moving_supports,
)

A, B = number([0.3, -2.0]), number([0.8, 3.0])
TRIL = number([[2.0, 0.0], [0.5, 0.7]])
LAWS = {
    "uniform": lambda a, b: dist.Uniform(a, a + b),
    "parabola": lambda a, b: sf.TruncatedParabola(a, b),
    "pareto": lambda a, b: dist.Pareto(b, torch.full_like(b, 2.5)),
    "below": lambda a, b: Below(a),
    "generalized_pareto": lambda a, b: dist.GeneralizedPareto(
        a.float(), b.float(), torch.tensor([-0.4, 0.4])
    ),
    "ellipsoid": lambda a, b: sf.TruncatedParaboloid(torch.stack([a, b]), b * TRIL),
    "mixture": lambda a, b: sf.Mixture(
        torch.zeros(2).double(), sf.TruncatedParabola(torch.stack([a, a + 3], -1), b.unsqueeze(-1))
    ),
    "truncated": lambda a, b: sf.Truncated(sf.Normal(a, b), a - b, a + 2 * b),
    "kernel": lambda a, b: sf.KernelDeformedExp(
        number([4.0, -4.0, 3.0]) * b[0], number([0.2, 0.5, 0.8]), bell(0.1)
    ),
    "expanded": lambda a, b: dist.Uniform(a, a + b).expand((3, 2)).to_event(1),
    "cut": lambda a, b: Cut(a, b),
    "shifted": lambda a, b: affine(dist.Exponential(b), a, b),
    "flipped": lambda a, b: affine(dist.LogNormal(a, b), a, -b),
    "scaled": lambda a, b: affine(dist.Beta(b, b), a, b).to_event(1),
}


def affine(base: dist.Distribution, loc: Tensor, scale: Tensor) -> dist.TransformedDistribution:
    """A map whose support torch takes for the line."""
    return dist.TransformedDistribution(base, [dist.transforms.AffineTransform(loc, scale)])


class Below(dist.TransformedDistribution):
    """a - Exponential(1), which says that it ends at a."""

    def __init__(self, end: Tensor) -> None:
        self.end = end
        base = dist.Exponential(torch.ones_like(end))
        super().__init__(base, [dist.transforms.AffineTransform(end, -torch.ones_like(end))])

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.less_than(self.end)


class Endless(Below):
    """The same, said of an interval without a lower end."""

    @constraints.dependent_property(is_discrete=False, event_dim=0)
    def support(self) -> constraints.Constraint:
        return constraints.interval(-torch.inf, self.end)


class Cut(dist.TransformedDistribution):
    """Two coordinates, one on an interval and one positive: no support that has a name."""

    def __init__(self, low: Tensor, width: Tensor) -> None:
        self.low, self.width = low[..., :1], width[..., :1]
        base = dist.Normal(torch.zeros_like(low), 1.0).to_event(1)
        super().__init__(base, [biject_to(self.support)])

    @constraints.dependent_property(is_discrete=False, event_dim=1)
    def support(self) -> constraints.Constraint:
        parts = [constraints.interval(self.low, self.low + self.width), constraints.positive]
        return constraints.cat(parts, dim=-1, lengths=[1, 1])


def model_of(law) -> object:
    return lambda: pyro.sample("y", law())


def standard(model):
    return poutine.reparam(model, config={"y": SupportReparam()})


def traced(model, base: Tensor | None = None):
    if base is not None:
        model = poutine.condition(model, {"y_base": base})
    trace = poutine.trace(model).get_trace()
    trace.compute_log_prob()
    return trace.nodes


@pytest.mark.parametrize("name", LAWS)
def test_the_law_is_the_same_on_a_base_that_stands_still(name: str) -> None:
    """Density of the base = density of the site times the derivative, by autodiff."""
    law = LAWS[name](A, B)
    model = standard(model_of(lambda: law))
    nodes = traced(model)
    base = nodes["y_base"]["value"]
    again = traced(model, base)
    torch.testing.assert_close(again["y"]["value"], nodes["y"]["value"])
    assert law.support.check(again["y"]["value"]).all()
    assert again["y"]["fn"].event_shape == law.event_shape

    def place(v: Tensor) -> Tensor:
        return traced(model, v)["y"]["value"].reshape(-1)

    jacobian = torch.autograd.functional.jacobian(place, base).reshape(base.numel(), base.numel())
    expected = law.log_prob(again["y"]["value"]).sum() + torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(again["y_base"]["log_prob_sum"], expected)
    assert again["y"]["log_prob_sum"] == 0 and again["y_base"]["fn"].shape() == law.shape()
    # The base is the same with other parameters, and so is its bijection; ends included.
    u, moved = torch.randn(3, 1, 2, dtype=DOUBLE), LAWS[name](A + 5, 2 * B)
    bases = (
        traced(standard(model_of(lambda law=law: law)))["y_base"]["fn"] for law in (law, moved)
    )
    images = [biject_to(fn.support)(u.to(fn.sample().dtype)) for fn in bases]
    torch.testing.assert_close(images[0], images[1], rtol=0, atol=0)
    # Initial values are kept, and default ones are inside.
    start = law.sample()
    nodes = traced(InitMessenger(init_to_value(values={"y": start}))(model))
    assert nodes["y"]["value"] is start and not nodes["y_base"]["is_observed"]
    again = traced(standard(model_of(lambda: law)), nodes["y_base"]["value"])
    torch.testing.assert_close(again["y"]["value"], start)
    starts = [traced(InitMessenger(init_to_uniform())(model)) for _ in range(5)]
    assert all(x["y_base"]["log_prob"].isfinite().all() for x in starts)
    places = torch.stack([x["y"]["value"] for x in starts])
    assert places.isfinite().all() and places.std(0).min() > 0


@pytest.mark.parametrize("place", [0.0, 1e4])
def test_no_digits_are_lost_far_from_zero(place: float) -> None:
    """In float32, where y itself has few of them."""
    v = torch.tensor([1e-3, 0.4, 1.0 - 1e-3])
    loc = torch.tensor(place)
    u = 2 * v - 1
    expected = {
        dist.Uniform(loc, loc + 0.1): torch.zeros(3),
        sf.TruncatedParabola(loc, 0.1): torch.log(6 * v * (1 - v)),
        sf.LocationScale(loc, 0.1, lambda x: x**2 / 2): torch.log(2 * (1 - u.abs())),
    }
    for law, log_density in expected.items():
        model = standard(model_of(lambda law=law: law.expand([3])))
        torch.testing.assert_close(traced(model, v)["y_base"]["log_prob"], log_density)
    law = sf.TruncatedParaboloid(loc.expand(2), 0.1 * TRIL.float())
    nodes = traced(standard(model_of(lambda: law)), torch.tensor([0.6, -0.3]))
    disc = torch.tensor(2 / torch.pi * (1 - 0.45)).log()
    torch.testing.assert_close(nodes["y_base"]["log_prob"], disc)


@pytest.mark.parametrize("how", ["of the law", "of the site"])
def test_a_site_that_is_masked_out_has_no_influence(how: str) -> None:
    keep = torch.tensor([True, False])

    def model(width: Tensor) -> None:
        law = sf.TruncatedParabola(A, width)
        if how == "of the law":
            pyro.sample("y", law.mask(keep))
        else:
            with poutine.mask(mask=keep):
                pyro.sample("y", law)

    for width in (B, 7 * B):
        nodes = traced(lambda width=width: AutoSupportReparam()(model)(width))
        u = 2 * nodes["y_base"]["value"] - 1
        expected = torch.where(keep, (1.5 * (1 - u * u)).log(), 0.0)
        torch.testing.assert_close(nodes["y_base"]["log_prob"], expected)
        torch.testing.assert_close(nodes["y"]["value"], A + width * u)


def test_observed_and_fixed_sites_are_left_alone() -> None:
    def model() -> None:
        pyro.sample("z", dist.Normal(A, B))
        pyro.sample("p", dist.Beta(B, B))
        pyro.sample("k", dist.Categorical(torch.ones(3)))
        pyro.sample("n", dist.Binomial(5, torch.tensor(0.5)))
        pyro.sample("g", sf.Normal(A, B))
        pyro.sample("d", dist.Delta(A))
        pyro.sample("u", dist.Uniform(0.0, 2.0))
        pyro.sample("o", dist.Uniform(A, A + B), obs=A + B / 2)

    strategy = AutoSupportReparam()
    nodes = traced(strategy(model))
    assert set(nodes) == {"_INPUT", "_RETURN", "z", "p", "k", "n", "g", "d", "u", "o"}
    assert all(found is None for found in strategy.config.values())
    by_name = poutine.reparam(model, config={n: SupportReparam() for n in "zpgdo"})
    assert set(traced(by_name)) == set(nodes)
    torch.testing.assert_close(traced(by_name)["o"]["log_prob"], -B.log())


ENDS = torch.tensor([0.0, 1.0, 2.0])


def moving(o: float = 1.0) -> None:
    x = pyro.sample("x", dist.Normal(torch.zeros((), dtype=DOUBLE), 1.0))
    y = pyro.sample("y", sf.TruncatedParabola(x, torch.ones((), dtype=DOUBLE)))
    pyro.sample("o", dist.Normal(y, 0.5), obs=torch.tensor(o, dtype=DOUBLE))


def test_a_guide_for_the_base_is_replayed() -> None:
    def guide() -> None:
        pyro.sample("x", dist.Normal(torch.tensor(0.2).double(), 0.7))
        pyro.sample("y_base", dist.Beta(torch.tensor(2.0).double(), 3.0))

    model = AutoSupportReparam()(moving)
    pyro.set_rng_seed(0)
    given = poutine.trace(guide).get_trace()
    x, v = (given.nodes[name]["value"] for name in ("x", "y_base"))
    found = poutine.trace(poutine.replay(model, trace=given)).get_trace()
    y = x + 2 * v - 1
    torch.testing.assert_close(found.nodes["y"]["value"], y)
    expected = dist.Normal(0.0, 1.0).log_prob(x) + dist.Normal(y, 0.5).log_prob(torch.tensor(1.0))
    expected = expected + (1.5 * (1 - (2 * v - 1).square())).log()
    torch.testing.assert_close(found.log_prob_sum(), expected)
    pyro.set_rng_seed(0)
    loss = Trace_ELBO().loss(model, guide)
    assert loss == pytest.approx((given.log_prob_sum() - expected).item())


@pytest.mark.parametrize(
    ("law", "rule"),
    [
        (dist.Binomial(torch.tensor(5.0), torch.tensor(0.5)), "discrete"),
        (
            sf.Mixture(torch.zeros(2), sf.TruncatedParaboloid(torch.randn(2, 2), torch.eye(2))),
            "one piece .* enumerate",
        ),
        (
            dist.MixtureSameFamily(
                dist.Categorical(torch.ones(2)), dist.Uniform(torch.zeros(2), torch.ones(2))
            ),
            "MixtureSameFamily",
        ),
        (Endless(A), "lower_bound must be finite"),
    ],
    ids=["binomial", "ellipsoids", "torch's mixture", "no lower end"],
)
def test_what_has_no_standard_coordinates_is_refused(law, rule: str) -> None:
    model = poutine.reparam(model_of(lambda: law), config={"y": SupportReparam()})
    with pytest.raises(ValueError, match=rf"(?s)site 'y' must have .*{rule}"):
        traced(model)


WIDE = {
    "uniform": lambda x: dist.Uniform(0.3 - x, 0.3 + x),
    "triangular": lambda x: sf.Triangular(0.3, x),
    "ellipsoid": lambda x: sf.TruncatedParaboloid(torch.zeros(2), x * torch.eye(2)),
}


@pytest.mark.parametrize("name", WIDE)
def test_ends_that_overflow_are_divergences_of_a_chain_and_errors_elsewhere(name: str) -> None:
    """Steps that are sought start at 2 and are doubled, so that exp(x) overflows in float32."""

    def model() -> None:
        x = pyro.sample("x", dist.LogNormal(0.0, 0.5))
        pyro.sample("y", WIDE[name](x))

    reparam = AutoSupportReparam()(model)
    with pyro.validation_enabled(False):  # as in chains
        start, potential, _, _ = initialize_model(reparam)
        for far in (200.0, -200.0):
            slopes, energy = potential_grad(potential, {**start, "x": torch.tensor(far)})
            assert not energy.isfinite() or energy > 1e4
            assert set(slopes) == {"x", "y_base"}
        with pytest.raises(ValueError, match=r"site 'y' must have a support .* finite"):
            poutine.condition(reparam, {"x": torch.tensor(torch.inf)})()
    pyro.set_rng_seed(5)
    kernel = NUTS(reparam, max_tree_depth=3)
    MCMC(kernel, 2, warmup_steps=2, disable_progbar=True).run()


# Warnings of supports that move
def model(width: float = 1.0) -> Tensor:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("fixed", dist.Uniform(0.0, width))
    with pyro.plate("pair", 2):
        return pyro.sample("y", dist.Uniform(x, x + 1))


def ellipse() -> None:
    x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("y", sf.TruncatedParaboloid(x, torch.eye(2)))


def union() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", sf.Mixture(torch.zeros(2), sf.Triangular(torch.stack([x, x + 1]), 1.0)))


def component() -> None:
    with pyro.plate("n", 2):
        k = pyro.sample("k", dist.Categorical(torch.ones(3)))
        pyro.sample("y", dist.Uniform(ENDS[k], 9.0))


def compared() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Uniform(torch.where(x > 0, 1.0, 2.0), 9.0))


def written() -> None:
    low = torch.zeros(3)
    low[1] = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Uniform(low[1], 9.0))


def unmoved() -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("z", dist.Normal(x, 1.0))
    pyro.sample("s", dist.Uniform(torch.zeros_like(x), x.new_ones(2)).to_event(1))
    pyro.sample("m", affine(dist.Normal(0.0, 1.0), x, torch.tensor(2.0)))
    pyro.sample("u", dist.Uniform(-1.0, torch.tensor([1.0, 2.0])).to_event(1))
    pyro.sample("t", sf.TruncatedParabola(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("n", dist.Binomial(5, torch.sigmoid(x)))
    pyro.sample("o", dist.Uniform(x - 9, x + 9), obs=torch.tensor(0.0))


# Warnings are errors here, so that none has been given where one is not expected.
@pytest.mark.parametrize("moving", [model, ellipse, union, component, compared, written])
def test_sites_that_move_are_named_unless_they_are_reparameterized(moving) -> None:
    with pytest.warns(MovingSupportWarning, match=r"site 'y' .*AutoSupportReparam\(\)") as caught:
        assert check_model(moving) == ["y"]
    assert len(caught) == 1
    assert check_model(AutoSupportReparam()(moving)) == []
    assert check_model(poutine.reparam(moving, config={"y": SupportReparam()})) == []
    watched = AutoSupportReparam()(warn_moving_supports(moving))
    for _ in range(5):
        watched()


def test_supports_that_stand_still_and_bad_models() -> None:
    assert check_model(unmoved) == []
    for check in (check_model, warn_moving_supports):
        with pytest.raises(TypeError, match="model must be callable, got None"):
            check(None)


def minibatch(widths: Tensor) -> None:
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("n", 20, subsample_size=len(widths)) as rows:
        pyro.sample("still", dist.Uniform(torch.zeros(20)[rows], widths))
        pyro.sample("y", dist.Uniform(x, x + torch.arange(1.0, 21.0)[rows]))


def test_data_that_change_are_neither_a_reason_nor_an_excuse() -> None:
    with pytest.warns(MovingSupportWarning, match="'y'") as caught:
        assert check_model(minibatch, torch.ones(5)) == ["y"]
    assert len(caught) == 1
    watched = warn_moving_supports(minibatch)
    x = torch.tensor(0.1, requires_grad=True)  # as kernels and guides give it
    with pytest.warns(MovingSupportWarning, match="'y'") as caught:
        for _ in range(3):
            poutine.condition(watched, {"x": x})(torch.rand(5) + 1)
    assert len(caught) == 1


def bounded(restricted: bool, seen: float = 50.0) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    width = dist.LogNormal(torch.zeros(()), 1.0)
    if restricted:
        width = RestrictedPrior(width, low=(seen - loc).abs())
    with pyro.plate("n", 2):
        law = sf.BetaGaussian(loc, pyro.sample("width", width), 1.5)
        pyro.sample("seen", law, obs=seen * torch.ones(2))


@config_enumerate
def disjoint() -> None:
    """The density of one component is zero; the sum over both is not."""
    side = pyro.sample("side", dist.Bernoulli(0.5))
    pyro.sample("seen", sf.TruncatedParabola(8 * side, 1.0), obs=torch.tensor(0.2))


def test_a_density_that_is_zero_where_nuts_starts_is_told() -> None:
    with pytest.raises(ValueError, match="cannot find valid initial params"):
        initialize_model(bounded, (False,))
    with pytest.warns(
        RuntimeWarning, match="site 'seen' is zero at 10 of .*init_to_value.*Restricted"
    ):
        assert check_model(bounded, False) == []
    # Each cure, and models that need none; a warning would be an error.
    restricted = AutoSupportReparam()(bounded)
    assert check_model(restricted, True) == [] and initialize_model(restricted, (True,))
    start = init_to_value(values={"loc": torch.tensor(0.0), "width": torch.tensor(60.0)})
    assert initialize_model(bounded, (False,), init_strategy=start)
    assert check_model(bounded, False, 2.0) == []
    # Models that cannot be started at random.
    gap = sf.Mixture(torch.zeros(2), sf.Triangular(torch.tensor([0.0, 5.0]), 1.0))
    assert check_model(disjoint) == [] and check_model(lambda: pyro.sample("y", gap)) == []


def censored(how: str) -> None:
    """What is known of a value is that it is above 1, or below it."""
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    y = pyro.sample("y", dist.Uniform(x - 1, x + 1) if how == "moving" else dist.Normal(x, 1.0))
    tail = 1 - sf.TruncatedParabola(y, 1.0).cdf(torch.tensor(1.0))
    if how == "NaN":  # 0 * -inf where the tail is empty
        pyro.factor("tail", torch.where(y == 0, 0.0, 0 * tail.log()))
    else:
        pyro.factor("tail", torch.log(tail))


@pytest.mark.parametrize("how", ["zero", "NaN", "moving"])
@pytest.mark.filterwarnings("ignore::sparsefam.inference.MovingSupportWarning")
def test_factors_that_are_zero_or_not_a_number_at_some_starts_are_told(how: str) -> None:
    what = "NaN" if how == "NaN" else "zero"
    pyro.set_rng_seed(0)
    with pyro.validation_enabled(how != "NaN"):
        with pytest.warns(RuntimeWarning, match=f"factor 'tail' is {what} at [2-9] of 10 .* wall"):
            assert check_model(censored, how) == ["y"] * (how == "moving")


def test_a_check_leaves_no_trace() -> None:
    def learned() -> None:
        scale = pyro.param("scale", torch.tensor(1.0))
        pyro.sample("x", dist.Normal(pyro.param("new", torch.randn(3)), scale).to_event(1))

    pyro.clear_param_store()
    scale = pyro.param("scale", torch.tensor(2.0))
    expected = pyro.util.get_rng_state()["torch"].clone()
    assert check_model(learned) == []
    assert torch.equal(pyro.util.get_rng_state()["torch"], expected)
    assert list(pyro.get_param_store().keys()) == ["scale"] and pyro.param("scale") is scale
