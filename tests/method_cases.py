"""Every method in a small federation: what the contract tests and the bits tests run. A method joins here."""

UNEVEN = "partition.name=class_dirichlet"
_ADAM = "method.server.name=adam method.server.lr=0.01"
_HOLDERS = "method.intersection=holders method.prune_axes=output method.share_of=mask"
_LORA = "model.name=mlp model.hidden=[16,12] method.ranks=[8,4,2]"
_MORE = {
    "fedavg": "",
    "fedavg-samples": f"method.weighting=samples {UNEVEN}",
    "fedavg-adam": f"{_ADAM} {UNEVEN}",
    "fedhm": UNEVEN,
    "fedhm-adam": f"{_ADAM} {UNEVEN}",
    "fedhm-adamw": "train.optimizer=adamw train.lr=0.001",
    "fedhm-dynamic": f"clients.tier_assignment=dynamic method.rank_ratio=[1,0.6,0.3] {UNEVEN}",
    "fedhm-low-only": "method.rank_ratio=[0.5,0.25] method.unroll=code method.plus_l2=true",
    "fedhm-delta": f"method.aggregation=delta {UNEVEN}",
    "fedhm-delta-low": "method.aggregation=delta method.residual=0.9 method.rank_ratio=[0.5,0.25]",
    "fedhm-coverage": "method.aggregation=delta method.coverage=0.5 clients.tier_assignment=dynamic",
    "orthdrop": f"method.keep_ratio=[1,0.5] method.o2=true {UNEVEN}",
    "prism": UNEVEN,
    "prism-cut": "method.cut_inputs=true method.keep_ratio=[0.7,0.4,0.2]",
    "prism-tiers": f"method.test_tiers=true method.keep_ratio=[0.5,0.2] {UNEVEN}",
    "fjord": f"method.widths=[1,0.6,0.3] {UNEVEN}",
    "fjord-distillation": "method.widths=[0.8,0.4] method.distillation=true",
    "heterofl": UNEVEN,
    "heterofl-ceil": "method.widths=[0.9,0.4] method.rounding=ceil model.order=pre",
    "fedrolex": UNEVEN,
    "fedrolex-yogi": "method.widths=[0.6,0.3] model.order=pre method.server.name=yogi method.server.lr=0.01",
    "heterofl-group": f"method.widths=[1,0.5] method.server.name=avgm model.norm=group {UNEVEN}",
    "origdrop": UNEVEN,
    "origdrop-tiers": "method.test_tiers=true method.keep_ratio=[0.5]",
    "splitmix": f"method.levels=[1,0.5,0.25] method.atom=0.25 {UNEVEN}",
    "fedprox": f"method.mu=0.1 {UNEVEN}",
    "hermes": f"method.accuracy_threshold=0 {_HOLDERS} {UNEVEN}",
    "hermes-all": f"method.accuracy_threshold=0 method.weighting=samples {UNEVEN}",
    "lgfedavg": UNEVEN,
    "lgfedavg-pretrained": "method.pretrain_rounds=2 method.global_layers=3",
    "perfedavg": f"method.beta=lr {UNEVEN}",
    "perfedavg-hf": "method.beta=lr method.variant=HF",
    "scaffold": f"train.momentum=0 {UNEVEN}",
    "fednova": f"train.momentum=0.5 {UNEVEN}",
    "fednova-prox": f"method.mu=0.1 method.weighting=samples {UNEVEN}",
    "feddyn": f"method.alpha=0.1 {UNEVEN}",
    "moon": UNEVEN,
    "fedbn": UNEVEN,
    "standalone": UNEVEN,
    "topk": UNEVEN,
    "topk-tensor": "method.scope=tensor method.download=sparse",
    "fdnnc": f"method.upload=half {UNEVEN}",
    "fdnnc-both": "method.pattern=both model.name=mlp model.hidden=[16]",
    "fdnnc-bfirst": "method.pattern=bfirst method.switch_round=1 method.loss=mse",
    "lora": f"{_LORA} model.trained=none {UNEVEN}",
    "lora-fedit": f"{_LORA} model.trained=[layers.4.*] method.aggregation=fedit {UNEVEN}",
    "lora-ffa": f"{_LORA} model.trained=none method.aggregation=ffa clients.tier_assignment=dynamic",
    "lora-flexlora": f"{_LORA} model.trained=none method.aggregation=flexlora clients.tier_assignment=dynamic",
    "lora-fedex": f"{_LORA} model.trained=[layers.4.*] method.aggregation=fedex method.scale=rslora",
    "lora-flora": f"{_LORA} model.trained=none method.aggregation=flora clients.tier_assignment=dynamic",
    "lora-hetlora": f"{_LORA} model.trained=none method.aggregation=hetlora method.gamma=0.5 {UNEVEN}",
    "lora-raflora": f"{_LORA} model.trained=[layers.4.*] method.aggregation=raflora train.optimizer=adamw",
}
CASES = {case: (f"method.name={case.partition('-')[0]}", *more.split()) for case, more in _MORE.items()}
"""Overrides for `SMALL` of small_runs.py: 8 clients, 4 a round."""

# Clients of FedHM return a truncation, FDNNC's W becomes one, steps of no length gather control variates, and
# FedNova counts them, and rows of A that some clients lack shrink in fedit: test_fedhm.py, test_fdnnc.py,
# test_scaffold.py, test_fednova.py and test_lora.py have what these keep.
MOVES_WITHOUT_TRAINING = {
    *("fedhm", "fedhm-dynamic", "fedhm-low-only", "fedhm-adamw", "fedhm-delta", "fedhm-delta-low", "fedhm-coverage"),
    *("fdnnc", "fdnnc-both", "scaffold", "fednova", "fednova-prox"),
    *("lora-fedit", "lora-fedex"),
}
"""Cases in which a round without training changes the state."""

BYTES_DIFFER = {
    *("hermes", "hermes-all", "lgfedavg", "lgfedavg-pretrained", "scaffold", "scaffold-gradient"),
    *("fdnnc", "standalone", "topk", "topk-tensor", "fednova", "fednova-prox", "fedbn"),
    *("lora-ffa", "lora-fedex", "lora-flora"),
}
"""Cases whose protocol bytes are not 4 per parameter both ways; the test file of the method has their formula."""
