"""The methods by name. To add one: a file here, a line below, a YAML in configs/, a test file."""

from __future__ import annotations

from fedmpi.config.schema import Choice
from fedmpi.methods.fdnnc import FDNNC, FDNNCOptions
from fedmpi.methods.fedavg import FedAvg, FedAvgOptions
from fedmpi.methods.fedhm import FedHM, FedHMOptions
from fedmpi.methods.fedprox import FedProx, FedProxOptions
from fedmpi.methods.fjord import Fjord, FjordOptions
from fedmpi.methods.hermes import Hermes, HermesOptions
from fedmpi.methods.heterofl import HeteroFL, HeteroFLOptions
from fedmpi.methods.lgfedavg import LGFedAvg, LGFedAvgOptions
from fedmpi.methods.origdrop import OrigDrop, OrigDropOptions
from fedmpi.methods.perfedavg import PerFedAvg, PerFedAvgOptions
from fedmpi.methods.prism import OrthDrop, OrthDropOptions, Prism, PrismOptions
from fedmpi.methods.protocol import Method, MethodContext
from fedmpi.methods.scaffold import Scaffold, ScaffoldOptions
from fedmpi.methods.splitmix import SplitMix, SplitMixOptions
from fedmpi.methods.standalone import Standalone, StandaloneOptions
from fedmpi.methods.topk import TopK, TopKOptions

NAMES: dict[str, Choice] = {
    "fedavg": Choice(FedAvgOptions, "federated averaging (McMahan et al. 2017): one net of any width for everybody"),
    "fedhm": Choice(FedHMOptions, "low-rank factorized nets by capacity, lifted and averaged (Yao et al. 2021)"),
    "fdnnc": Choice(FDNNCOptions, "gradients of whole layers and of their factors, by device (Li et al. 2022)"),
    "prism": Choice(PrismOptions, "some principal kernels of every layer, drawn by importance (Niu et al. 2022)"),
    "orthdrop": Choice(
        OrthDropOptions, "PriSM's baseline: the first principal kernels of every layer (Niu et al. 2022)"
    ),
    "heterofl": Choice(HeteroFLOptions, "narrow nets by capacity, nested, averaged by entry (Diao et al. 2021)"),
    "splitmix": Choice(SplitMixOptions, "ensembles of narrow base nets, by capacity (Hong et al. 2022)"),
    "fjord": Choice(FjordOptions, "ordered dropout: a random affordable width in every step (Horvath et al. 2021)"),
    "origdrop": Choice(OrigDropOptions, "PriSM's baseline: leading channels by capacity, the full net is tested"),
    "fedprox": Choice(FedProxOptions, "federated averaging with a proximal term (T. Li et al. 2020)"),
    "scaffold": Choice(ScaffoldOptions, "control variates against client drift (Karimireddy et al. 2020)"),
    "lgfedavg": Choice(
        LGFedAvgOptions, "first layers stay with their client, last ones are averaged (Liang et al. 2020)"
    ),
    "hermes": Choice(HermesOptions, "personal pruned nets, averaged where they overlap (Li et al. 2021)"),
    "perfedavg": Choice(PerFedAvgOptions, "an initial model that one step adapts to a client (Fallah et al. 2020)"),
    "topk": Choice(TopKOptions, "sparse updates: the largest entries travel, the rest waits (Aji and Heafield 2017)"),
    "standalone": Choice(StandaloneOptions, "Hermes's baseline: every client trains for itself, nothing is exchanged"),
}

_CLASSES: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedhm": FedHM,
    "fdnnc": FDNNC,
    "prism": Prism,
    "orthdrop": OrthDrop,
    "heterofl": HeteroFL,
    "splitmix": SplitMix,
    "fjord": Fjord,
    "origdrop": OrigDrop,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "lgfedavg": LGFedAvg,
    "hermes": Hermes,
    "perfedavg": PerFedAvg,
    "topk": TopK,
    "standalone": Standalone,
}


def create(context: MethodContext) -> Method:
    """The method that the context's options name."""
    return _CLASSES[context.options.name](context)
