"""The head in torch, as `native/core/features.cc` computes it, unrolled over its own states.

Step s of the unrolling is the s-th token of a draft: row j reads the state of row j - 1 of step s - 1, and sees what
the target's states gave up to row j - s, and of each step since then the one row that is on its own path.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checkpoints.head import FUSE, VECTORS, shapes
from ..types import F32, ModelSpec


class Head(nn.Module):
    """Weights are float32 arrays by the names they have on disk."""

    def __init__(self, spec: ModelSpec, weights: Mapping[str, F32]) -> None:
        super().__init__()
        self.spec = spec
        self.names = [*shapes(spec), *VECTORS]
        self.weights = nn.ParameterDict(
            {n.replace(".", "-"): nn.Parameter(torch.tensor(weights[n])) for n in self.names}
        )
        rope = spec.ropes[spec.layer_rope[-1]]
        self.rope_scale = rope.scale
        self.inv_freq = torch.tensor(rope.inv_freq)

    def w(self, name: str) -> Tensor:
        return self.weights[name.replace(".", "-")]

    def arrays(self) -> dict[str, F32]:
        """The weights, by name."""
        return {name: self.w(name).detach().numpy().copy() for name in self.names}

    def forward(self, embeds: Tensor, states: Tensor, depth: int) -> list[Tensor]:
        """embeds [B, L, H] of tokens, the target's states [B, L, 3H] -> by step: the head's own states [B, L, H]."""
        length = embeds.shape[1]
        angles = torch.arange(length)[:, None] * self.inv_freq
        cos, sin = angles.cos() * self.rope_scale, angles.sin() * self.rope_scale
        causal = torch.arange(length)[:, None] - torch.arange(length)  # [row, entry]
        embeds = self._norm(embeds * self.spec.embed_scale, "embed_norm")
        x = states @ self.w(FUSE).T
        past: list[tuple[Tensor, Tensor]] = []
        out: list[Tensor] = []
        for step in range(depth):
            x = F.pad(x[:, :-1], (0, 0, 1, 0))  # what is behind the token before
            pair = torch.cat([embeds, self._norm(x, "layers.0.attn_norm")], -1)
            q, k, v = (self._heads(pair @ self.w(f"layers.0.{n}").T) for n in "qkv")
            past.append((self._turn(k, cos, sin), v))
            x = x + self._attend(self._turn(q, cos, sin), past, causal >= step) @ self.w("layers.0.o").T
            h = self._norm(x, "layers.0.ffn_norm")
            act = F.silu if self.spec.activation == "silu" else (lambda t: F.gelu(t, approximate="tanh"))
            wide = act(h @ self.w("layers.0.gate").T) * (h @ self.w("layers.0.up").T)
            x = x + wide @ self.w("layers.0.down").T
            out.append(x)
        return out

    def logits(self, x: Tensor, rows: Tensor) -> Tensor:
        """Of own states [n, H] for the output rows [V, H] of the draft vocabulary."""
        return self._norm(x, "norm") @ rows.T

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w(name), self.spec.norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)  # [B, heads, L, D]

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def _attend(self, q: Tensor, past: list[tuple[Tensor, Tensor]], seen: Tensor) -> Tensor:
        """q [B, Hq, L, D]; `seen` [L, L] of the first step's entries, and one of each later step -> [B, L, Hq * D]."""
        group = self.spec.num_heads // self.spec.num_kv_heads
        q = q.unflatten(1, (-1, group)) * self.spec.attention_scale  # [B, Hkv, group, L, D]
        (k0, v0), last = past[0], len(past) - 1
        scores = [(q @ k0[:, :, None].transpose(-1, -2)).masked_fill(~seen, -torch.inf)]
        values = []
        for i, (k, v) in enumerate(past[1:], 1):
            back = last - i
            k, v = (F.pad(t[:, :, : t.shape[2] - back], (0, 0, back, 0))[:, :, None] for t in (k, v))
            scores.append((q * k).sum(-1, keepdim=True))
            values.append(v)
        shares = torch.cat(scores, -1).softmax(-1)
        out = shares[..., : k0.shape[2]] @ v0[:, :, None]
        for i, v in enumerate(values):
            out = out + shares[..., k0.shape[2] + i, None] * v
        return out.flatten(1, 2).transpose(1, 2).flatten(2)
