"""What an installed sparsefam must do, without anything of the checkout."""

from importlib.metadata import metadata
from importlib.resources import files
from pathlib import Path

import torch

import sparsefam as sf

place = Path(sf.__file__).resolve()
if "site-packages" not in place.parts:
    raise SystemExit(f"not the installed package, but {place}")
if metadata("sparsefam")["Version"] != sf.__version__:
    raise SystemExit(f"{metadata('sparsefam')['Version']} is not {sf.__version__}")
if not files("sparsefam").joinpath("py.typed").is_file():
    raise SystemExit("py.typed is missing")

# Mean and mass of a parabola, by a basis; and a layer's gradient.
p = sf.TruncatedParabola(torch.tensor(0.3), torch.tensor(1.0))
found = p.expect(sf.bases.Polynomial(1))
if not torch.allclose(found, torch.tensor([1.0, 0.3])):
    raise SystemExit(f"E_p[1, t] must be (1, 0.3), got {found}")
regression = sf.attention.RidgeRegression(sf.bases.GaussianRBF.grid(16, 0.1))
layer = sf.attention.ContinuousAttention(8, 2, regression, batch_first=True)
values = torch.randn(4, 50, 8, requires_grad=True)
layer(torch.randn(4, 1, 8), values, values, torch.rand(4, 50))[0].sum().backward()
if not (values.grad is not None and values.grad.isfinite().all() and values.grad.any()):
    raise SystemExit(f"the layer must have gradients, got {values.grad}")
print(f"sparsefam {sf.__version__} on torch {torch.__version__} works as installed")
