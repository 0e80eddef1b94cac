"""Tell trees apart by the outlines of their leaves, seen at irregular points.

Six maples and oaks differ by the shape of lobes and teeth, wherever these are on the outline: the
distance of the edge from the middle of the leaf, once around. A random half of the points is kept.
Three encoders read the points, and differ only by what mixes them. In `ContinuousAttention` each of
16 heads looks at a distance from the point that asks, so that together they see its surroundings;
discrete attention compares points with each other; the third network mixes nothing.

All end with the means of their outputs over four parts of the outline, taken by a `Readout`.
`python -m examples.leaves` prints the accuracies on 242 leaves after 300 steps, and draws into
demo/leaves.png where the heads look. `python -m benchmarks.networks` compares more networks on more
data, with convolutional ones among the best.

References:
    Gandhi (2002), Content-based image retrieval: plant species identification. MS thesis, Oregon
    State University. (OSULeaf)
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu
from tqdm import tqdm

from sparsefam.attention import ContinuousAttention, Readout
from sparsefam.plotting import plot_attention

from .common import mean_sd, print_table, run
from .data import read_series

SIZE, HEADS, PARTS, CLASSES, BATCH, RATE = 32, 16, 4, 6, 16, 1e-2
TREES = "vine maple", "Rocky Mountain maple", "bigleaf maple", "box elder", "white oak", "black oak"
Outlines = tuple[Tensor, Tensor, Tensor]


def load(part: str, generator: torch.Generator) -> Outlines:
    """Load outlines, part TRAIN or TEST: places and values (B, 107), and labels (B,)."""
    recordings = read_series(f"OSULeaf/OSULeaf_{part}.ts")
    x = torch.tensor([channels[0] for channels, _ in recordings])[:, ::2]
    labels = torch.tensor([label - 1 for _, label in recordings])
    order = torch.rand(x.shape, generator=generator).argsort(-1)
    kept = order[:, : (x.shape[1] + 1) // 2].sort(-1).values
    return (kept + 0.5) / x.shape[1], x.gather(1, kept), labels


class Encoder(nn.Module):
    """Two blocks of a layer that mixes points and a dense one, and a readout."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embed = nn.Linear(2, SIZE)
        self.mixers = nn.ModuleList(mixer(kind) for _ in range(2 if kind != KINDS[0] else 0))
        self.dense = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(SIZE),
                nn.Linear(SIZE, 2 * SIZE),
                nn.GELU(),
                nn.Linear(2 * SIZE, SIZE),
                nn.Dropout(0.1),
            )
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in self.mixers)
        self.readout = Readout(PARTS)
        self.classify = nn.Sequential(nn.Dropout(0.2), nn.Linear(PARTS * SIZE, CLASSES))

    def forward(self, places: Tensor, values: Tensor) -> tuple[Tensor, list[object]]:
        """Return logits, and what each layer attends to."""
        x, attention = self.embed(torch.stack([places, values], -1)), []
        for i, dense in enumerate(self.dense):
            if len(self.mixers):
                y, layer = self.norms[i](x), self.mixers[i]
                where = {"positions": places} if isinstance(layer, ContinuousAttention) else {}
                context, density = layer(y, y, y, **where)
                x = x + context
                attention.append(density)
            x = x + dense(x)
        return self.classify(self.readout(places, gelu(x))), attention


KINDS = ("no attention", "nn.MultiheadAttention", "ContinuousAttention")


def mixer(kind: str) -> nn.Module:
    """Return the layer that mixes points."""
    if kind == KINDS[1]:
        return nn.MultiheadAttention(SIZE, 4, batch_first=True)
    options = {"head_dim": 4, "layer_scale": 1.0, "batch_first": True}
    return ContinuousAttention(SIZE, HEADS, score="local", **options)


def train(kind: str, data: Outlines, steps: int, seed: int) -> Encoder:
    """Minimize the cross-entropy by AdamW, with a rate that decreases to 0."""
    torch.manual_seed(seed)
    model = Encoder(kind)
    optimizer = torch.optim.AdamW(model.parameters(), RATE if kind != KINDS[1] else RATE / 3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        index = torch.randperm(len(data[2]))[:BATCH]
        places, values, labels = (x[index] for x in data)
        optimizer.zero_grad()
        cross_entropy(model(places, values)[0], labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def draw(model: Encoder, test: Outlines, path: Path) -> None:
    """Draw an outline of two trees, and where the heads of one of its points look."""
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.2), layout="constrained", sharey=True)
    places, values, labels = test
    density = model(places, values)[1][0]
    for ax, label, query in zip(axes, (2, 5), (40, 70), strict=True):
        i = int((labels == label).nonzero()[0])
        part = (i, slice(1, None, 2), query)  # every other head
        plot_attention(density, places[i], values[i], example=part, ax=ax, view=(0.0, 1.0))
        ax.axvline(float(places[i, query]), color="0.5", linewidth=1, linestyle=":")
        ax.set(title=TREES[label], xlabel="way around the leaf")
    axes[0].set_ylabel("distance from the middle, and heads")
    figure.savefig(path, dpi=160)


def main(seeds: int = 10, steps: int = 300, out: Path = Path("demo")) -> None:
    """Train all networks with several seeds, at least two, which also change the points kept."""
    right: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for seed in tqdm(range(seeds), "seeds", disable=None):
        generator = torch.Generator().manual_seed(seed)
        data, test = load("TRAIN", generator), load("TEST", generator)
        for kind in KINDS:
            model = train(kind, data, steps, seed)
            with torch.no_grad():
                hits = model(*test[:2])[0].argmax(-1) == test[2]
            right[kind].append(100 * hits.double().mean().item())
        if seed == 0:
            draw(model, test, out / "leaves.png")
    print_table(["encoder with", "accuracy, %"], [[k, mean_sd(right[k], 1)] for k in KINDS])


if __name__ == "__main__":
    run(main)
