"""Whether workers replay their steps as CUDA graphs (`train.cuda_graph`): settled before the first round, and said."""

from __future__ import annotations

from fedmpi.learning.replay import CudaGraphs, replay_steps
from fedmpi.methods.protocol import has_plain_steps
from fedmpi.rounds.state import Setup

DEVICE = "cuda"
_NAME = "CUDA graphs"


def settle_replays(setup: Setup) -> tuple[str, ...]:
    """Records what this rank can replay. Returns what to say of it, the same on every rank; nothing where clients train
    on CPUs and nobody asked. All ranks call it together.
    """
    texts, members = setup.comm.allgather_text(_of_this_rank(setup)), setup.comm.members
    found: dict[str, list[str]] = {}
    for rank in setup.workers:
        found.setdefault(texts[rank], []).append(str(members[rank]))
    if len(found) > 1:
        return tuple(f"{_NAME} on rank {', '.join(ranks)}: {text}" for text, ranks in found.items())
    return tuple(f"{_NAME}: {text}" for text in found if text)


def _of_this_rank(setup: Setup) -> str:
    """What this rank replays, and why not the rest; the same for every worker of the same kind of device."""
    train, device, tiers = setup.config.train, setup.data.device, setup.method.tiers
    if not setup.trainers or (train.cuda_graph == "off" and device.type != DEVICE):
        return ""
    if reason := _why_none(setup):
        return f"not used, because {reason}"
    reasons = replay_steps(setup.trainers[: len(tiers)], setup.partition.indices, setup.config.seed, CudaGraphs(device))
    replayed = [tier.name for tier, reason in zip(tiers, reasons, strict=True) if not reason]
    if not replayed and len(set(reasons)) == 1:
        return f"not used, because {reasons[0]}"
    said = [f"not tier {tier.name}: {reason}" for tier, reason in zip(tiers, reasons, strict=True) if reason]
    if replayed:
        said.insert(0, f"replayed in batches of {train.batch_size} by tier {', '.join(replayed)}")
    return "; ".join(said)


def _why_none(setup: Setup) -> str:
    """Why no tier's steps can be replayed, as far as that is known without trying."""
    config, size = setup.config, setup.config.train.batch_size
    if config.train.cuda_graph == "off":
        return "train.cuda_graph is off"
    if setup.data.device.type != DEVICE:
        return f"clients train on {setup.data.device.type}"
    if not has_plain_steps(setup.method):
        return f"{config.method.name} computes gradients in steps of its own"
    if int(setup.partition.sizes.max()) < size:
        return f"no client has a whole batch of {size} examples"
    return ""
