"""Frobenius decay: weight decay of the product of two factors.

Local training, between backward and the optimizer's step. Khodak, Tenenholtz, Mackey, Fusi,
"Initialization and regularization of factorized neural layers", arXiv:2105.01029; FedHM,
arXiv:2111.14655, 2.3. With U (M, r) and V (r, N), the gradient of (lambda / 2) ||U V||_F^2 is
lambda U (V V^T) for U and lambda (U^T U) V for V.

Differences from the paper: none.
"""

from collections.abc import Iterable, Mapping

import torch

from fedmpi.lowrank.factorized import FactorizedLayer, channels_inside
from fedmpi.tensors import Params, Spec


@torch.no_grad()
def frobenius_decay_(
    u: torch.Tensor, v: torch.Tensor, grad_u: torch.Tensor, grad_v: torch.Tensor, coefficient: float
) -> None:
    """Adds the gradient of (coefficient / 2) ||U V||_F^2 to `grad_u` and `grad_v`, in place.

    `u` (r, m[, kh, kw]) and `v` (n, r[, kh, kw]) are the weights of a layer's two halves. Any
    memory format will do; in channels_last nothing larger than (r, r) is allocated.
    O(r^2 (M + N)) multiply-adds; nothing waits for the device.
    """
    r = u.shape[0]
    u_rows = channels_inside(u).reshape(r, -1)
    v_rows = channels_inside(v).reshape(-1, r)
    gram_u = u_rows @ u_rows.t()
    gram_v = v_rows.t() @ v_rows
    _add_product_(grad_u, gram_v, u_rows, coefficient)
    _add_product_(grad_v, v_rows, gram_u, coefficient)


def decay_layers_(layers: Iterable[FactorizedLayer], params: Params, grads: Params, coefficient: float) -> None:
    """Applies `frobenius_decay_` to each of these layers, whose factors are among `params`."""
    for layer in layers:
        u, v = layer.factor_names
        frobenius_decay_(params[u], params[v], grads[u], grads[v], coefficient)


def decay_macs(layers: Iterable[FactorizedLayer], specs: Mapping[str, Spec]) -> int:
    """Returns the multiply-adds of `decay_layers_`: 2 r^2 (M + N) for each of these layers."""
    total = 0
    for layer in layers:
        u, v = (specs[name] for name in layer.factor_names)
        r = u.shape[0]
        total += 2 * r * (u.num_elements + v.num_elements)
    return total


def _add_product_(grad: torch.Tensor, left: torch.Tensor, right: torch.Tensor, coefficient: float) -> None:
    inside = channels_inside(grad)
    if inside.is_contiguous():
        inside.view(left.shape[0], right.shape[1]).addmm_(left, right, alpha=coefficient)
    else:
        inside.add_((left @ right).view(inside.shape), alpha=coefficient)
