"""Trained nets for use without fedmpi: a tier's or a client's net of a saved round, in one file.

`python -m fedmpi.export RUN --tier 0.25` (see `__main__`). From Python:

    from fedmpi.export.saved import saved_round
    from fedmpi.export.nets import net_of_tier
    net = net_of_tier(saved_round("runs/digits", "best"), "0.25").net  # a plain torch module in eval mode
"""
