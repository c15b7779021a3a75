"""Every method in a small federation: what the contract tests and the bits tests run. A method joins here."""

from small_runs import TOY

UNEVEN = "partition.name=class_dirichlet"
CASES: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg",),
    "fedavg-samples": ("method.name=fedavg", "method.weighting=samples", UNEVEN),
    "fedavg-adam": ("method.name=fedavg", "method.server.name=adam", "method.server.lr=0.01", UNEVEN),
    "fedhm": ("method.name=fedhm", UNEVEN),
    "fedhm-adam": ("method.name=fedhm", "method.server.name=adam", "method.server.lr=0.01", UNEVEN),
    "fedhm-adamw": ("method.name=fedhm", "train.optimizer=adamw", "train.lr=0.001"),
    "fedhm-dynamic": ("method.name=fedhm", "clients.tier_assignment=dynamic", "method.rank_ratio=[1,0.6,0.3]", UNEVEN),
    "fedhm-low-only": (
        "method.name=fedhm",
        "method.rank_ratio=[0.5,0.25]",
        "method.unroll=code",
        "method.plus_l2=true",
    ),
    "fedhm-delta": ("method.name=fedhm", "method.aggregation=delta", UNEVEN),
    "fedhm-delta-low": (
        "method.name=fedhm",
        "method.aggregation=delta",
        "method.residual=0.9",
        "method.rank_ratio=[0.5,0.25]",
    ),
    "fedhm-coverage": (
        "method.name=fedhm",
        "method.aggregation=delta",
        "method.coverage=0.5",
        "clients.tier_assignment=dynamic",
    ),
    "orthdrop": ("method.name=orthdrop", "method.keep_ratio=[1,0.5]", "method.o2=true", UNEVEN),
    "prism": ("method.name=prism", UNEVEN),
    "prism-cut": ("method.name=prism", "method.cut_inputs=true", "method.keep_ratio=[0.7,0.4,0.2]"),
    "prism-momentum": ("method.name=prism", "method.server_momentum=true", "method.keep_ratio=[0.5]"),
    "fjord": ("method.name=fjord", "method.widths=[1,0.6,0.3]", UNEVEN),
    "fjord-distillation": ("method.name=fjord", "method.widths=[0.8,0.4]", "method.distillation=true"),
    "heterofl": ("method.name=heterofl", UNEVEN),
    "heterofl-ceil": ("method.name=heterofl", "method.widths=[0.9,0.4]", "method.rounding=ceil", "model.order=pre"),
    "fedrolex": ("method.name=fedrolex", UNEVEN),
    "fedrolex-yogi": (
        "method.name=fedrolex",
        "method.widths=[0.6,0.3]",
        "model.order=pre",
        "method.server.name=yogi",
        "method.server.lr=0.01",
    ),
    "heterofl-group": (
        "method.name=heterofl",
        "method.widths=[1,0.5]",
        "method.server.name=avgm",
        "model.norm=group",
        UNEVEN,
    ),
    "origdrop": ("method.name=origdrop", UNEVEN),
    "splitmix": ("method.name=splitmix", "method.levels=[1,0.5,0.25]", "method.atom=0.25", UNEVEN),
    "fedprox": ("method.name=fedprox", "method.mu=0.1", UNEVEN),
    "hermes": ("method.name=hermes", "method.accuracy_threshold=0", UNEVEN),
    "hermes-all": (
        "method.name=hermes",
        "method.accuracy_threshold=0",
        "method.intersection=all",
        "method.prune_axes=both",
        "method.score=l1",
    ),
    "lgfedavg": ("method.name=lgfedavg", UNEVEN),
    "lgfedavg-pretrained": ("method.name=lgfedavg", "method.pretrain_rounds=2", "method.global_layers=3"),
    "perfedavg": ("method.name=perfedavg", "method.beta=lr", UNEVEN),
    "perfedavg-hf": ("method.name=perfedavg", "method.beta=lr", "method.variant=HF"),
    "scaffold": ("method.name=scaffold", "train.momentum=0", UNEVEN),
    "scaffold-gradient": ("method.name=scaffold", "method.option=I", "method.server_lr=0.5"),
    "standalone": ("method.name=standalone", UNEVEN),
    "topk": ("method.name=topk", UNEVEN),
    "topk-tensor": ("method.name=topk", "method.scope=tensor", "method.error_feedback=false"),
    "fdnnc": ("method.name=fdnnc", "method.upload=half", UNEVEN),
    "fdnnc-both": ("method.name=fdnnc", "method.pattern=both", "model.name=mlp", "model.hidden=[16]"),
    "fdnnc-bfirst": ("method.name=fdnnc", "method.pattern=bfirst", "method.switch_round=1", "method.loss=mse"),
    "toy": (*TOY, UNEVEN),
}
"""Overrides for `SMALL` of small_runs.py: 8 clients, 4 a round."""

MOVES_WITHOUT_TRAINING = {
    "fedhm": "clients of low rank return a truncation: its exact mean is tested in test_without_training.py",
    "fedhm-dynamic": "as fedhm: clients return a truncation",
    "fedhm-low-only": "as fedhm: clients return a truncation",
    "fedhm-adamw": "as fedhm: clients return a truncation",
    "fedhm-delta": "float32 factors are no exact truncation: test_fedhm_delta.py has the distance",
    "fedhm-delta-low": "as fedhm-delta, and what lies beyond all ranks goes",
    "fedhm-coverage": "as fedhm-delta: float32 factors are no exact truncation",
    "toy": "uploads are rounded to bfloat16: tested exactly in test_without_training.py",
    "fdnnc": "W becomes its truncation: test_fdnnc.py has an iteration without gradients",
    "fdnnc-both": "as fdnnc: W becomes the mean of itself and its truncation",
    "prism-momentum": "the server averages momenta, which steps of no length also gather; without: case prism",
    "scaffold": "control variates are gradients, which also steps of no length measure; the model: test_scaffold.py",
    "scaffold-gradient": "as scaffold: control variates move",
}
"""Cases that are exempt from the fixed point, and why."""

BYTES_DIFFER = {
    "toy": "sends two bytes a number and keeps a tensor to itself: test_without_training.py",
    "hermes": "a mask goes up, and only what it keeps travels: test_hermes.py",
    "hermes-all": "a mask goes up, and only what it keeps travels: test_hermes.py",
    "prism-momentum": "momenta travel, too: test_prism.py",
    "lgfedavg": "only the global part travels: test_lgfedavg.py",
    "lgfedavg-pretrained": "the plan has the bytes of phase 2, round 1 is of phase 1: test_lgfedavg.py",
    "scaffold": "control variates travel, too: test_scaffold.py",
    "scaffold-gradient": "control variates travel, too: test_scaffold.py",
    "fdnnc": "a small device keeps half of its factors' gradients to itself: test_fdnnc.py",
    "standalone": "nothing travels at all: test_standalone.py",
    "topk": "values and indices of a tenth go up: test_topk.py",
    "topk-tensor": "values and indices of a tenth go up: test_topk.py",
}
"""Cases whose protocol bytes are not 4 per parameter both ways, and where their formula is tested."""
