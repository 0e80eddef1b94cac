"""How long ten people take for one gesture: a hierarchy, its chains, and its exact answers.

Each of ten people picked something up ten times with an accelerometer in the hand; half of the
recordings are for learning. The logarithm of a duration is normal around the person's own, and
those of people have a density that is a parabola, zero beyond an interval that is latent too, or
a normal.

References:
    Guna, Humar and Pogacnik (2012), Intuitive gesture based user identification system: the
    recordings, as aeon has them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

import sparsefam as sf

__all__ = ["MODELS", "Table", "load", "model_of", "tabulated"]

MODELS = ("parabola", "normal")
# Standard deviation of a parabola of half-width 1.
_SPREAD = 5**-0.5
DOUBLE = torch.float64
_MEAN, _SCALE, _NOISE = (4.8, 0.7), (-0.5, 0.5), (-1.6, 0.5)


def load() -> tuple[Tensor, Tensor]:
    """Logarithms of durations in frames, to learn from and to predict, (10 people, 5) each."""
    return _durations("TRAIN"), _durations("TEST")


def _durations(part: str) -> Tensor:
    folder = "aeon/datasets/data/PickupGestureWiimoteZ"
    path = distribution("aeon").locate_file(f"{folder}/PickupGestureWiimoteZ_{part}.ts")
    found: dict[int, list[float]] = {}
    for line in Path(str(path)).read_text(encoding="utf-8").splitlines():
        if line.strip() and line[0] not in "#@":
            series, person = line.rsplit(":", 1)
            found.setdefault(int(person), []).append(series.count(",") + 1.0)
    return torch.tensor([found[person] for person in sorted(found)], dtype=DOUBLE).log()


def population(name: str, mean: Tensor, spread: Tensor) -> dist.TorchDistribution:
    """Of people, by its mean and its standard deviation."""
    if name == "parabola":
        return sf.TruncatedParabola(mean, spread / _SPREAD)
    return dist.Normal(mean, spread)


def model_of(name: str, seen: Tensor) -> Callable[[], None]:
    """A model of Pyro's; the support of site `person` moves with `mean` and `spread`."""

    def prior(numbers: tuple[float, float]) -> list[Tensor]:
        return list(torch.tensor(numbers, dtype=DOUBLE))

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(*prior(_MEAN)))
        spread = pyro.sample("spread", dist.LogNormal(*prior(_SCALE)))
        noise = pyro.sample("noise", dist.LogNormal(*prior(_NOISE)))
        with pyro.plate("people", len(seen)):
            person = pyro.sample("person", population(name, mean, spread))
            with pyro.plate("times", seen.shape[1]):
                pyro.sample("duration", dist.Normal(person, noise), obs=seen.T)

    return model


@dataclass(frozen=True)
class Table:
    """The posterior on a grid over mean, spread and noise (G).

    Attributes:
        mean: Of the population.
        spread: Its standard deviation.
        noise: Of one duration.
        prior: Log prior weight.
        own: Log likelihood of each person's durations and own place (10, Q, G).
        people: The same with the place integrated out (10, G).
        places: Each person's own places (Q, G), to be integrated over.
        shares: Their weights in the population (Q, G).
    """

    mean: Tensor
    spread: Tensor
    noise: Tensor
    prior: Tensor
    own: Tensor
    people: Tensor
    places: Tensor
    shares: Tensor

    def weights(self, without: int | None = None) -> Tensor:
        """Posterior weights (G), with all people or without one."""
        total = self.prior + self.people.sum(0)
        return (total if without is None else total - self.people[without]).softmax(0)

    def stranger(self, weights: Tensor) -> Tensor:
        """Joint weights (Q, G) of the numbers and of the own place of a person not seen."""
        return self.shares * weights

    def known(self, person: int) -> Tensor:
        """The same of one of the people, given all durations."""
        total = self.prior + self.people.sum(0) - self.people[person] + self.own[person]
        return total.flatten().softmax(0).reshape(total.shape)

    def below(self, joint: Tensor, value: Tensor) -> Tensor:
        """Distribution function of one more duration at (M) values."""
        law = dist.Normal(self.places, self.noise)
        # One by one: all at once they would fill the memory.
        return torch.stack([(joint * law.cdf(x)).sum() for x in value])


def tabulated(name: str, seen: Tensor, size: int = 16, nodes: int = 64) -> Table:
    """All that there is to know, by quadrature."""
    sides = (torch.linspace(-4, 4, size, dtype=DOUBLE),) * 3
    u, v, w = (x.reshape(-1) for x in torch.meshgrid(*sides, indexing="ij"))
    # A grid over where the posterior is, narrower than the priors.
    mean, spread, noise = 4.85 + 0.25 * u, torch.exp(-0.6 + 0.24 * v), torch.exp(-1.65 + 0.13 * w)
    logs = (_MEAN, mean), (_SCALE, spread.log()), (_NOISE, noise.log())
    prior = torch.stack([-((x - m) / s).square() / 2 for (m, s), x in logs]).sum(0)
    places, shares = _rule(name, mean, spread, nodes)
    law = dist.Normal(places, noise)
    own = torch.stack([law.log_prob(x.reshape(-1, 1, 1)).sum(0) + shares.log() for x in seen])
    return Table(mean, spread, noise, prior, own, torch.logsumexp(own, 1), places, shares)


def _rule(name: str, mean: Tensor, spread: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Places and weights (Q, G) for expectations in the population, by equal steps."""
    reach = 1.0 if name == "parabola" else 4.0
    x = reach * (2 * (torch.arange(nodes, dtype=DOUBLE) + 0.5) / nodes - 1)
    weights = 1 - x.square() if name == "parabola" else torch.exp(-x.square() / 2)
    half = spread / _SPREAD if name == "parabola" else spread
    shares = (weights / weights.sum()).unsqueeze(-1).expand(nodes, len(mean))
    return mean + half * x.unsqueeze(-1), shares
