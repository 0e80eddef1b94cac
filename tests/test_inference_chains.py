"""Hamiltonian Monte Carlo on supports that move, against posteriors by quadrature."""

import pyro
import pytest
import torch
from scipy.stats import norm

from benchmarks import inference
from benchmarks.inference import (
    POSTERIORS,
    Posterior,
    Verdict,
    allowed,
    judged,
    uniform,
    unmet,
    verdict,
    worst,
)
from sparsefam.inference import MovingSupportWarning, warn_moving_supports

QUICK = {
    "uniform on a moving interval, prior": 500,
    "three groups, parabola of latent place and size": 500,
}
DOUBLE = torch.float64


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_moments_are_those_of_the_posterior(name: str) -> None:
    found = worst(judged(POSTERIORS[name], QUICK[name]).values())
    # Further than in the long chains: the worst of ten numbers, on a machine that rounds otherwise.
    assert found.deviation < 4 and unmet(found._replace(deviation=0.0)) == []


@pytest.mark.slow
def test_longer_chains(capsys: pytest.CaptureFixture[str]) -> None:
    assert inference.main([]) == 0
    _, table = capsys.readouterr().out.split("NUTS against quadrature")
    assert table.count("2 x") == len(POSTERIORS)


def test_plain_chains_are_wrong_about_it_and_can_be_made_to_say_so() -> None:
    # Whatever the first trace is, y cannot leave its interval, whose length is 1.
    pyro.set_rng_seed(0)
    kernel = pyro.infer.NUTS(warn_moving_supports(uniform), max_tree_depth=4)
    mcmc = pyro.infer.MCMC(kernel, 60, warmup_steps=30, disable_progbar=True)
    with pytest.warns(MovingSupportWarning, match=r"site 'y' moves .*'y': .*SupportReparam\(\)"):
        mcmc.run()
    y = mcmc.get_samples()["y"]
    assert y.max() - y.min() <= 1


def test_verdicts_of_independent_draws() -> None:
    """Whose effective sample size is their number, and whose deviations are known."""
    torch.manual_seed(0)
    draws = torch.randn(2, 2000, 3, dtype=DOUBLE)
    found = verdict(draws, 0.0, 1.0)
    assert unmet(found) == [] and 2500 < found.size < 6000 and found.r_hat < 1.002
    off = verdict(draws, torch.tensor([0.0, 0.2, 0.0], dtype=DOUBLE), 1.0)
    assert off.deviation == pytest.approx(0.2 * 4000**0.5, rel=0.25)
    apart = verdict(draws + torch.tensor([0.0, 1.0])[:, None, None], 0.5, 1.25)
    assert unmet(apart) == ["r_hat", "size"]
    assert worst([found, off, apart]) == Verdict(off.deviation, apart.r_hat, apart.size, 18)


def test_the_worst_of_many_may_deviate_further() -> None:
    """So that right chains are called wrong in one table of a hundred, however long it is."""
    for count in (4, 10, 100):
        assert 1 - (1 - 2 * norm.sf(allowed(count))) ** (count * len(POSTERIORS)) == pytest.approx(
            0.01, rel=0.01
        )
        near, far = (Verdict(allowed(count) + by, 1.0, 900.0, count) for by in (-0.01, 0.01))
        assert (unmet(near), unmet(far)) == ([], ["deviation"])
    draws = torch.zeros(2, 500, 3, dtype=DOUBLE).normal_(generator=torch.manual_seed(0))
    assert verdict(draws, 0.0, 1.0).count == 6


def test_the_table_says_which_limit_is_not_met(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        mean, one = torch.tensor([9.0, 1.0], dtype=DOUBLE)
        return {"x": (mean, one)}

    monkeypatch.setattr(inference, "POSTERIORS", {"wrong": Posterior(uniform, wrong, 60)})
    assert inference.main(["--draws", "60"]) == 1
    assert "limit not met: wrong: deviation" in capsys.readouterr().out
