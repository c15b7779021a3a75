"""Frobenius decay: weight decay of the product of two factors.

Local training, between backward and the optimizer's step. Khodak, Tenenholtz, Mackey, Fusi, "Initialization and
regularization of factorized neural layers", arXiv:2105.01029; FedHM, arXiv:2111.14655, 2.3. With U (M, r) and V (r, N),
the gradient of (lambda / 2) ||U V||_F^2 is lambda U (V V^T) for U and lambda (U^T U) V for V.
"""

from collections.abc import Iterable, Mapping

import torch

from fedmpi.lowrank.factorized import FactorizedLayer, channels_inside
from fedmpi.tensors import Params, Spec


@torch.no_grad()
def decay_layers_(layers: Iterable[FactorizedLayer], params: Params, grads: Params, coefficient: float) -> None:
    """Adds the gradient of (coefficient / 2) ||U V||_F^2 of each layer to `grads`, in place.

    Kernels lie in channels_last. O(r^2 (M + N)) multiply-adds; nothing larger than (r, r) is allocated, and nothing
    waits for the device.
    """
    for layer in layers:
        name_u, name_v = layer.factor_names
        u = layer.u_matrix(params[name_u]).t()  # (r, M)
        v = layer.v_matrix(params[name_v]).t()  # (N, r)
        channels_inside(grads[name_u]).view(u.shape).addmm_(v.t() @ v, u, alpha=coefficient)
        channels_inside(grads[name_v]).view(v.shape).addmm_(v, u @ u.t(), alpha=coefficient)


def decay_macs(layers: Iterable[FactorizedLayer], specs: Mapping[str, Spec]) -> int:
    """Returns the multiply-adds of `decay_layers_`: 2 r^2 (M + N) for each of these layers."""
    total = 0
    for layer in layers:
        u, v = (specs[name] for name in layer.factor_names)
        total += 2 * u.shape[0] * (u.num_elements + v.num_elements)
    return total
