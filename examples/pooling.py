"""Pool an irregular series by learned queries: is that a gun?

An actor draws a gun or points a finger; a camera follows the hand. Half of the frames are lost at
random, so that frames come at irregular times. Every frame is embedded with its time, four learned
queries read the series, and a small network decides. Attention over time gives every head a place
and a width; discrete attention reads the same frames and times, and the mean reads them all.

`python -m examples.pooling` prints the accuracies on 150 test series after 300 steps, and draws
into demo/pooling.png where the heads look. `python -m benchmarks.networks` compares more networks
on more data, where a small convolutional network is often the best.

References:
    Ratanamahatana and Keogh (2005), Everything you know about dynamic time warping is wrong. Third
    Workshop on Mining Temporal and Sequential Data. (GunPoint)
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from sparsefam.attention import ContinuousAttention
from sparsefam.plotting import plot_attention

from .common import mean_sd, print_table, run
from .data import read_series

SIZE, HEADS, QUERIES, BATCH, RATE = 32, 4, 4, 32, 3e-3


def load(part: str, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Load the recordings, part TRAIN or TEST: times and values (B, 75), and labels (B,)."""
    recordings = read_series(f"GunPoint/GunPoint_{part}.ts")
    x = torch.tensor([channels[0] for channels, _ in recordings])
    labels = torch.tensor([label - 1 for _, label in recordings])
    order = torch.rand(x.shape, generator=generator).argsort(-1)
    kept = order[:, : x.shape[1] // 2].sort(-1).values
    return (kept + 0.5) / x.shape[1], x.gather(1, kept), labels


class Network(nn.Module):
    """Embed each frame with its time, pool by learned queries, and classify."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE))
        self.queries = nn.Parameter(0.5 * torch.randn(1, QUERIES, SIZE))
        self.attention: nn.Module | None = None
        if kind == "nn.MultiheadAttention":
            self.attention = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
        elif kind == "ContinuousAttention":
            self.attention = ContinuousAttention(SIZE, HEADS, batch_first=True)
        self.classify = nn.Sequential(
            nn.LayerNorm(QUERIES * SIZE),
            nn.Linear(QUERIES * SIZE, 64),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(64, 2),
        )

    def attend(self, times: Tensor, values: Tensor) -> tuple[Tensor, object]:
        """Return contexts (B, QUERIES, SIZE), and the densities or weights that read them."""
        x = self.embed(torch.stack([times, values], -1))
        queries = self.queries.expand(len(x), -1, -1)
        if isinstance(self.attention, ContinuousAttention):
            return self.attention(queries, x, x, positions=times)
        if self.attention is not None:
            return self.attention(queries, x, x)
        return x.mean(1, keepdim=True).expand(-1, QUERIES, -1), None

    def forward(self, times: Tensor, values: Tensor) -> Tensor:
        logits: Tensor = self.classify(self.attend(times, values)[0].flatten(1))
        return logits


KINDS = ("mean of the frames", "nn.MultiheadAttention", "ContinuousAttention")


def train(kind: str, data: tuple[Tensor, Tensor, Tensor], steps: int, seed: int) -> Network:
    """Minimise the cross-entropy by AdamW."""
    torch.manual_seed(seed)
    model = Network(kind)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for _ in range(steps):
        index = torch.randperm(len(data[2]))[:BATCH]
        times, values, labels = (x[index] for x in data)
        optimizer.zero_grad()
        cross_entropy(model(times, values), labels).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def draw(model: Network, test: tuple[Tensor, Tensor, Tensor], path: Path) -> None:
    """Draw a series of each kind, and where the heads of the first query look."""
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.2), layout="constrained", sharey=True)
    times, values, labels = test
    density = model.attend(times, values)[1]
    for ax, label, title in zip(axes, (0, 1), ("gun", "finger"), strict=True):
        i = int((labels == label).nonzero()[0])
        part = (i, slice(None), 0)
        plot_attention(density, times[i], values[i], example=part, ax=ax, view=(0.0, 1.0))
        ax.set(title=title, xlabel="time")
    axes[0].set_ylabel("height of the hand, and heads")
    figure.savefig(path, dpi=160)


def main(seeds: int = 10, steps: int = 300, out: Path = Path("demo")) -> None:
    """Train all networks with several seeds, at least two, which also change the frames kept."""
    right: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in tqdm(range(seeds), "seeds"):
        generator = torch.Generator().manual_seed(seed)
        data, test = load("TRAIN", generator), load("TEST", generator)
        for kind in KINDS:
            model = train(kind, data, steps, seed)
            with torch.no_grad():
                hits = model(*test[:2]).argmax(-1) == test[2]
            right[kind].append(100 * hits.double().mean().item())
        if seed == 0:
            draw(model, test, out / "pooling.png")
    print_table(["pooling", "accuracy, %"], [[kind, mean_sd(right[kind], 1)] for kind in KINDS])


if __name__ == "__main__":
    run(main)
